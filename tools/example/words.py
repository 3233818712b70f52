"""The words that the example database is made of. Artists, people and titles are combined from these, hence invented."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GENRES = (
    ("Synthpop", "electronic"),
    ("Ambient", "electronic"),
    ("Techno", "electronic"),
    ("Indie Folk", "acoustic"),
    ("Chamber Pop", "acoustic"),
    ("Bluegrass", "acoustic"),
    ("Garage Rock", "rock"),
    ("Shoegaze", "rock"),
    ("Post-Punk", "rock"),
    ("Spiritual Jazz", "jazz"),
    ("Hard Bop", "jazz"),
    ("Neo Soul", "urban"),
    ("Hip-Hop", "urban"),
)

# city, country, weight among customers and artists
CITIES = (
    ("Lisbon", "Portugal", 9.0),
    ("Porto", "Portugal", 5.0),
    ("Ghent", "Belgium", 6.0),
    ("Antwerp", "Belgium", 4.0),
    ("Berlin", "Germany", 9.0),
    ("Leipzig", "Germany", 4.0),
    ("Hamburg", "Germany", 3.0),
    ("Kraków", "Poland", 5.0),
    ("Gdańsk", "Poland", 2.0),
    ("Bergen", "Norway", 3.0),
    ("Tartu", "Estonia", 2.0),
    ("Málaga", "Spain", 4.0),
    ("Bilbao", "Spain", 3.0),
    ("Lyon", "France", 5.0),
    ("Nantes", "France", 3.0),
    ("Trieste", "Italy", 2.0),
    ("Galway", "Ireland", 3.0),
)

# name, city, country, day opened, floor area, share of the sales
STORES = (
    ("Needle & Groove Alfama", "Lisbon", "Portugal", "2009-03-14", 210, 5.0),
    ("Needle & Groove Patershol", "Ghent", "Belgium", "2012-09-01", 165, 3.0),
    ("Needle & Groove Neukölln", "Berlin", "Germany", "2014-05-17", 340, 6.0),
    ("Needle & Groove Kazimierz", "Kraków", "Poland", "2017-11-03", 120, 2.0),
    ("Needle & Groove Croix-Rousse", "Lyon", "France", "2021-04-10", 145, 2.0),
    ("Needle & Groove Online", "Lisbon", "Portugal", "2016-01-25", None, 6.0),
)

FIRST_NAMES = _words(
    "Ana Bram Clara Dario Elif Femke Goran Hanna Ines Jonas Katrin Levi Marta Nils Olga Paulo Quentin Rosa Sven Tiago "
    "Ursula Vera Wout Xenia Yara Zoran Agata Bruno Chiara Duarte Emma Filip Greta Hugo Irena Julian Lotte Milan Noor Oskar"
)

LAST_NAMES = _words(
    "Almeida Bakker Carvalho Dubois Eriksen Ferraz Grabowski Hoffmann Ilves Jansen Kowalska Lindqvist Moreau Navarro "
    "O'Brien Peeters Quintela Richter Santos Tamm Urbański Vermeulen Wagner Zieliński Almada Berger Costa Desmet Fischer "
    "Garrido Haas Krüger Lemaire Murphy Nowak Pinto Rossi Sørensen Teixeira Vidal"
)

BAND_ADJECTIVES = _words(
    "Paper Copper Sleepless Saltwater Borrowed Crooked Velour Midwinter Feral Tin Hollow Amber Distant Gilded Quiet Reckless"
)

BAND_NOUNS = _words(
    "Lanterns Otters Cartographers Trams Antennas Beekeepers Orchards Telegrams Magpies Lighthouses Bicycles Matinees "
    "Comets Gardeners Postcards Umbrellas"
)

TITLE_STARTS = (
    "Letters from", "Songs for", "The Weight of", "After", "Beneath", "Postcards to", "All of", "Return to",
    "A Map of", "Goodbye,", "Notes on", "Waiting for",
)  # fmt: skip

TITLE_ENDS = (
    "the Harbour", "Winter Light", "Nobody", "the Last Tram", "Tall Grass", "an Empty Room", "Tomorrow", "the Tide",
    "Small Hours", "the Orchard", "Static", "Blue Smoke", "Another Coast", "the Night Shift", "Rain", "Old Maps",
    "the Observatory", "Salt and Honey",
)  # fmt: skip

TRACK_VERBS = _words("Burning Leaving Counting Chasing Holding Losing Finding Dreaming Walking Calling Breaking Hiding")

TRACK_NOUNS = _words(
    "Shadows Rivers Ghosts Windows Sundays Mountains Signals Strangers Letters Engines Gardens Mirrors Birds Stations "
    "Candles Satellites"
)

LABELS = ("Tidal Wax", "Northlight Records", "Small Planet", "Brass Key", "Casa Vermelha", "Kettle & Crow")

RETURN_REASONS = ("scratched", "wrong format", "arrived late", "unwanted gift", "warped")

COMMENTS = {
    1: ("Could not finish it.", "Flat mix, flat songs.", "My copy skipped on every side."),
    2: ("One good song.", "Too long by half.", "Expected more after the single."),
    3: ("Fine for a rainy day.", "Grows on you, slowly.", "Side B is better than side A."),
    4: ("Lovely pressing.", "Great for late evenings.", "The closing track is a gem."),
    5: ("Record of the year for me.", "Plays in the shop all day, rightly.", "Flawless from start to end."),
}
