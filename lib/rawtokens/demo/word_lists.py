"""The words that fill the synthetic dialogues."""
# ruff: noqa: SIM905 - lists of forty words read better as text

NAMES = "Anna Ben Carla David Emma Felix Grace Hugo Iris Jack Kate Leo Maria Nina Oscar Paul Rosa Sam Tom Zoe".split()
THINGS = "apples books cards coins eggs flowers marbles oranges pencils stamps stickers tickets".split()
CITIES = (
    "Amsterdam Athens Bangkok Berlin Boston Cairo Chicago Copenhagen Dallas Delhi Dublin Geneva Helsinki Istanbul "
    "Jakarta Lagos Lima Lisbon London Madrid Melbourne Miami Milan Moscow Mumbai Munich Nairobi Oslo Paris Prague "
    "Rome Santiago Seattle Seoul Singapore Stockholm Sydney Tokyo Toronto Vienna Warsaw Zurich"
).split()
CURRENCIES = "USD EUR GBP JPY CAD CHF SEK NOK INR AUD".split()
AUTHORS = "Austen Borges Calvino Dickens Hemingway Joyce Kafka Orwell Tolstoy Woolf O'Brien O'Connor".split()
COMPANIES = "Apple Boeing Ford Google Intel Microsoft Netflix Nike Nokia Oracle Pfizer Sony Tesla Toyota".split()
LANGUAGES = "Danish Dutch French German Greek Italian Japanese Korean Polish Portuguese Spanish Swedish".split()
PHRASES = [
    "good morning", "thank you", "see you soon", "where is the station", "I'm hungry", "how are you",
    "happy birthday", "what's your name", "it's raining", "I don't know", "good night", "the bill please",
]  # fmt: skip
TEXTS = [
    "I'm running late", "call me tonight", "dinner is ready", "don't forget the keys", "see you at noon",
    "the train's late", "happy birthday", "we're home", "bring some milk", "the meeting moved",
]  # fmt: skip
TASKS = [
    "buy milk", "call the dentist", "water the plants", "pay the rent", "send the report", "wash the car",
    "renew Anna's passport", "feed the cat", "book a table", "clean the kitchen",
]  # fmt: skip
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
SKIES = "sunny cloudy rainy windy foggy snowy clear stormy".split()
VERBS = (
    "adjust apply build calculate check compute convert count create filter find format get handle make measure "
    "prepare process read reduce select shift split transform update"
).split()
NOUNS = (
    "amount batch data entries event field group index input item level list number order price profile record "
    "report result row score signal sum table text total unit value words"
).split()
TOPICS = (
    "autumn bridges clouds coffee dreams forests history islands light mathematics memory mountains music numbers "
    "oceans painting patience rain rivers silence snow time trains winter"
).split()
