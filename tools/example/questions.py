"""Questions that the example database answers well, each with SQL that answers it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExampleQuestion:
    """A question and DuckDB SQL that answers it."""

    question: str
    sql: str


STARTERS = (
    ExampleQuestion(
        "Which store has the most orders?",
        "SELECT stores.name, COUNT(*) AS orders FROM orders JOIN stores ON orders.store_id = stores.store_id "
        "GROUP BY stores.store_id, stores.name ORDER BY orders DESC LIMIT 1",
    ),
    ExampleQuestion(
        "Which five albums have the most reviews?",
        "SELECT albums.title, COUNT(*) AS reviews FROM reviews JOIN albums ON reviews.album_id = albums.album_id "
        "GROUP BY albums.album_id, albums.title ORDER BY reviews DESC LIMIT 5",
    ),
    ExampleQuestion(
        "How many customers live in each country?",
        "SELECT country, COUNT(*) AS customers FROM customers GROUP BY country",
    ),
    ExampleQuestion(
        "Which artists come from Norway?",
        "SELECT name FROM artists WHERE country = 'Norway'",
    ),
)
"""What the chat offers to begin with; the shipped model answers each of them."""

EXAMPLE_QUESTIONS = (
    ExampleQuestion(
        "Which five artists sold the most copies?",
        "SELECT artists.name, SUM(order_lines.quantity) AS copies FROM order_lines "
        "JOIN albums ON order_lines.album_id = albums.album_id JOIN artists ON albums.artist_id = artists.artist_id "
        "GROUP BY artists.artist_id, artists.name ORDER BY copies DESC, artists.name LIMIT 5",
    ),
    ExampleQuestion(
        "How many customers live in Lisbon?",
        "SELECT COUNT(*) FROM customers WHERE city = 'Lisbon'",
    ),
    ExampleQuestion(
        "What was the revenue of each store in December 2025, highest first?",
        "SELECT stores.name, SUM(order_lines.quantity * order_lines.unit_price) AS revenue FROM orders "
        "JOIN stores ON orders.store_id = stores.store_id JOIN order_lines ON orders.order_id = order_lines.order_id "
        "WHERE orders.ordered_at >= '2025-12-01' AND orders.ordered_at < '2026-01-01' "
        "AND orders.status <> 'cancelled' GROUP BY stores.name ORDER BY revenue DESC",
    ),
    ExampleQuestion(
        "Which artists have no album in the catalogue?",
        "SELECT name FROM artists WHERE artist_id NOT IN (SELECT artist_id FROM albums) ORDER BY name",
    ),
    ExampleQuestion(
        "What is the average rating of shoegaze albums compared with techno albums?",
        "SELECT genres.name, AVG(reviews.rating) AS average_rating FROM reviews "
        "JOIN albums ON reviews.album_id = albums.album_id JOIN genres ON albums.genre_id = genres.genre_id "
        "WHERE genres.name IN ('Shoegaze', 'Techno') GROUP BY genres.name",
    ),
    ExampleQuestion(
        "How many people report to each store manager?",
        "SELECT managers.full_name, COUNT(*) AS reports FROM employees "
        "JOIN employees AS managers ON employees.manager_id = managers.employee_id "
        "WHERE managers.job_title = 'store manager' GROUP BY managers.employee_id, managers.full_name "
        "ORDER BY reports DESC, managers.full_name",
    ),
    ExampleQuestion(
        "Which customers from Germany bought a ticket but did not attend?",
        "SELECT DISTINCT customers.first_name, customers.last_name FROM customers "
        "JOIN tickets ON customers.customer_id = tickets.customer_id "
        "WHERE customers.country = 'Germany' AND NOT tickets.attended ORDER BY customers.last_name, customers.first_name",
    ),
    ExampleQuestion(
        "What are the most common reasons for returning vinyl?",
        "SELECT return_reason, COUNT(*) AS returns FROM order_lines "
        "WHERE format = 'vinyl' AND return_reason IS NOT NULL GROUP BY return_reason ORDER BY returns DESC, return_reason",
    ),
    ExampleQuestion(
        "Which concerts were sold out?",
        "SELECT artists.name, stores.name AS store, concerts.held_on FROM concerts "
        "JOIN artists ON concerts.artist_id = artists.artist_id JOIN stores ON concerts.store_id = stores.store_id "
        "JOIN tickets ON tickets.concert_id = concerts.concert_id "
        "GROUP BY concerts.concert_id, artists.name, stores.name, concerts.held_on, concerts.capacity "
        "HAVING COUNT(*) >= concerts.capacity ORDER BY concerts.held_on",
    ),
)
