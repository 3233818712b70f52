CREATE TABLE genres (
    genre_id INTEGER PRIMARY KEY,
    name VARCHAR NOT NULL,
    family VARCHAR NOT NULL
);
COMMENT ON TABLE genres IS 'Musical genres, the way the shelves are labelled';
COMMENT ON COLUMN genres.family IS 'Wider group of the genre: electronic, acoustic, rock, jazz or urban';

CREATE TABLE artists (
    artist_id INTEGER PRIMARY KEY,
    name VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    city VARCHAR NOT NULL,
    country VARCHAR NOT NULL,
    formed_year INTEGER,
    website VARCHAR
);
COMMENT ON TABLE artists IS 'Bands, duos and solo artists whose records are sold';
COMMENT ON COLUMN artists.kind IS 'band, duo or solo';
COMMENT ON COLUMN artists.city IS 'Home city';
COMMENT ON COLUMN artists.formed_year IS 'Year of the first performance; empty where nobody knows';

CREATE TABLE albums (
    album_id INTEGER PRIMARY KEY,
    title VARCHAR NOT NULL,
    artist_id INTEGER NOT NULL REFERENCES artists (artist_id),
    genre_id INTEGER NOT NULL REFERENCES genres (genre_id),
    release_date DATE NOT NULL,
    label VARCHAR,
    list_price DECIMAL(8, 2) NOT NULL
);
COMMENT ON TABLE albums IS 'Albums in the catalogue';
COMMENT ON COLUMN albums.label IS 'Record label; empty for self-released albums';
COMMENT ON COLUMN albums.list_price IS 'Price of the vinyl edition in euros';

CREATE TABLE tracks (
    track_id INTEGER PRIMARY KEY,
    album_id INTEGER NOT NULL REFERENCES albums (album_id),
    track_number INTEGER NOT NULL,
    title VARCHAR NOT NULL,
    duration_seconds INTEGER NOT NULL
);
COMMENT ON TABLE tracks IS 'Songs and pieces on the albums';

CREATE TABLE stores (
    store_id INTEGER PRIMARY KEY,
    name VARCHAR NOT NULL,
    city VARCHAR NOT NULL,
    country VARCHAR NOT NULL,
    opened_on DATE NOT NULL,
    floor_area_m2 INTEGER
);
COMMENT ON TABLE stores IS 'The shops, and the web shop';
COMMENT ON COLUMN stores.floor_area_m2 IS 'Sales floor in square metres; empty for the web shop';

CREATE TABLE employees (
    employee_id INTEGER PRIMARY KEY,
    full_name VARCHAR NOT NULL,
    job_title VARCHAR NOT NULL,
    store_id INTEGER NOT NULL REFERENCES stores (store_id),
    manager_id INTEGER REFERENCES employees (employee_id),
    hired_on DATE NOT NULL,
    left_on DATE,
    monthly_salary DECIMAL(8, 2) NOT NULL
);
COMMENT ON TABLE employees IS 'People who work or worked in the stores';
COMMENT ON COLUMN employees.manager_id IS 'The employee this one reports to; empty for the managing director';
COMMENT ON COLUMN employees.left_on IS 'Last day of work; empty for current employees';
COMMENT ON COLUMN employees.monthly_salary IS 'Gross salary per month in euros';

CREATE TABLE customers (
    customer_id INTEGER PRIMARY KEY,
    first_name VARCHAR NOT NULL,
    last_name VARCHAR NOT NULL,
    email VARCHAR,
    city VARCHAR NOT NULL,
    country VARCHAR NOT NULL,
    birth_date DATE,
    joined_on DATE NOT NULL,
    newsletter BOOLEAN NOT NULL
);
COMMENT ON TABLE customers IS 'Customers with a loyalty card';
COMMENT ON COLUMN customers.newsletter IS 'Whether the customer reads the monthly newsletter';

CREATE TABLE orders (
    order_id INTEGER PRIMARY KEY,
    customer_id INTEGER REFERENCES customers (customer_id),
    store_id INTEGER NOT NULL REFERENCES stores (store_id),
    employee_id INTEGER REFERENCES employees (employee_id),
    ordered_at TIMESTAMP NOT NULL,
    payment_method VARCHAR NOT NULL,
    status VARCHAR NOT NULL
);
COMMENT ON TABLE orders IS 'Purchases over the counter and in the web shop';
COMMENT ON COLUMN orders.customer_id IS 'Empty when the buyer showed no loyalty card';
COMMENT ON COLUMN orders.employee_id IS 'Who was at the counter; empty for the web shop';
COMMENT ON COLUMN orders.status IS 'completed, shipped, cancelled or pending';

CREATE TABLE order_lines (
    order_id INTEGER NOT NULL REFERENCES orders (order_id),
    line_number INTEGER NOT NULL,
    album_id INTEGER NOT NULL REFERENCES albums (album_id),
    format VARCHAR NOT NULL,
    quantity INTEGER NOT NULL,
    unit_price DECIMAL(8, 2) NOT NULL,
    returned_on DATE,
    return_reason VARCHAR,
    PRIMARY KEY (order_id, line_number)
);
COMMENT ON TABLE order_lines IS 'What was bought: one album in one format per line';
COMMENT ON COLUMN order_lines.format IS 'vinyl, cd, cassette or download';
COMMENT ON COLUMN order_lines.unit_price IS 'Price paid for one copy in euros, after any discount';
COMMENT ON COLUMN order_lines.returned_on IS 'Day the line was brought back; empty when it was kept';

CREATE TABLE reviews (
    review_id INTEGER PRIMARY KEY,
    album_id INTEGER NOT NULL REFERENCES albums (album_id),
    customer_id INTEGER NOT NULL REFERENCES customers (customer_id),
    rating INTEGER NOT NULL,
    comment VARCHAR,
    reviewed_on DATE NOT NULL
);
COMMENT ON TABLE reviews IS 'What customers think of the albums';
COMMENT ON COLUMN reviews.rating IS 'Stars from 1 (poor) to 5 (wonderful)';

CREATE TABLE concerts (
    concert_id INTEGER PRIMARY KEY,
    artist_id INTEGER NOT NULL REFERENCES artists (artist_id),
    store_id INTEGER NOT NULL REFERENCES stores (store_id),
    held_on DATE NOT NULL,
    capacity INTEGER NOT NULL,
    ticket_price DECIMAL(8, 2) NOT NULL
);
COMMENT ON TABLE concerts IS 'Evening concerts between the shelves';

CREATE TABLE tickets (
    ticket_id INTEGER PRIMARY KEY,
    concert_id INTEGER NOT NULL REFERENCES concerts (concert_id),
    customer_id INTEGER NOT NULL REFERENCES customers (customer_id),
    bought_on DATE NOT NULL,
    attended BOOLEAN
);
COMMENT ON TABLE tickets IS 'Concert tickets sold to customers';
COMMENT ON COLUMN tickets.attended IS 'Whether the ticket was scanned at the door; empty when the scanner was down';
