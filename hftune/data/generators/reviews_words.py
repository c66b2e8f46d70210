"""The vocabulary of the generated reviews: businesses, what they are reviewed for, and words by strength.

Called by reviews.py only. Strings are split on "|" so that the lists stay short and can hold phrases.
"""

LEVELS: dict[str, dict[int, str]] = {
    "any": {
        2: "great|fantastic|amazing|outstanding|superb|wonderful|excellent|perfect|brilliant|magnificent|phenomenal",
        1: "good|nice|pleasant|decent|solid|enjoyable|satisfying|likeable",
        0: "average|okay|passable|unremarkable|ordinary|so-so|middling|standard",
        -1: "disappointing|mediocre|underwhelming|weak|poor|lacking|dull|forgettable",
        -2: "terrible|awful|horrible|dreadful|atrocious|appalling|abysmal|disgraceful|hideous|miserable",
    },
    "food": {
        2: "delicious|mouth-watering|heavenly|exquisite|divine|unforgettable",
        1: "tasty|fresh|flavorful|tender|crisp|juicy|savory",
        0: "edible|plain|filling",
        -1: "bland|soggy|greasy|dry|overcooked|stale|lukewarm|salty",
        -2: "inedible|disgusting|revolting|rotten|rancid|vile",
    },
    "person": {
        2: "incredible|delightful|extraordinary|angelic|exceptional",
        1: "friendly|helpful|polite|attentive|patient|cheerful|kind|competent",
        0: "businesslike|quiet|neutral",
        -1: "impatient|careless|slow|distracted|cold|unhelpful|absent-minded|grumpy",
        -2: "insulting|hostile|abusive|disrespectful|outrageous|vicious",
    },
    "place": {
        2: "gorgeous|stunning|breathtaking|immaculate|spectacular",
        1: "clean|cozy|tidy|comfortable|inviting|charming|bright",
        0: "functional|plain|simple",
        -1: "cramped|noisy|dusty|shabby|gloomy|drafty|worn",
        -2: "filthy|squalid|disgusting|unbearable|nightmarish|repulsive",
    },
    "work": {
        2: "flawless|masterful|impeccable|first-rate|world-class",
        1: "careful|neat|thorough|quick|accurate|reliable|tidy",
        0: "adequate|basic|routine",
        -1: "sloppy|rushed|uneven|late|clumsy|patchy|imprecise",
        -2: "disastrous|botched|catastrophic|ruinous|horrendous",
    },
}
"""Words by the kind of thing they describe and by strength, from -2 (one star) to 2 (five stars)."""

BUSINESSES: dict[str, dict[str, str]] = {
    "restaurant": {
        "names": "restaurant|bistro|steakhouse|trattoria|noodle bar|grill|taqueria|diner",
        "food": "food|soup|pasta|steak|salmon|risotto|curry|salad|bread|dessert|cheesecake|lasagna|burger|fries*|"
        "dumplings*|tacos*|shrimp|drinks*|lobster|duck|lamb|gravy|mushrooms*|tiramisu|sushi|ramen|pizza|brisket|wings*",
        "person": "waiter|waitress|chef|hostess|bartender|manager|staff*|servers*|sommelier",
        "place": "dining room|patio|terrace|bathroom|booth|bar area|garden|view",
        "work": "service|seating|presentation|timing|plating|wine pairing",
    },
    "cafe": {
        "names": "cafe|coffee shop|tea room|bakery|brunch place|patisserie|doughnut shop",
        "food": "espresso|latte|cappuccino|croissant|muffin|bagel|sourdough|scones*|pancakes*|omelette|waffles*|"
        "hot chocolate|carrot cake|green tea|brownie|granola|eclair|cinnamon roll|quiche|jam|lemonade",
        "person": "barista|baker|cashier|owner|staff*|girl at the counter|guy at the register",
        "place": "corner table|reading nook|terrace|counter|upstairs room|window seat|restroom",
        "work": "service|latte art|catering|takeout order|delivery",
    },
    "hotel": {
        "names": "hotel|motel|guesthouse|resort|inn|bed and breakfast|lodge",
        "food": "breakfast|buffet|room service meal|minibar|coffee|dinner|poolside cocktail|scrambled eggs*",
        "person": "receptionist|concierge|porter|housekeeper|night manager|front desk clerk|staff*|valet",
        "place": "room|lobby|pool|bathroom|sauna|balcony|suite|rooftop|bedding|hallway|garden|mattress|beach",
        "work": "check-in|check-out|housekeeping|shuttle|laundry service|booking|wake-up call",
    },
    "salon": {
        "names": "salon|barber shop|spa|nail studio|beauty parlor|massage studio",
        "food": "herbal tea|complimentary coffee|sparkling water",
        "person": "stylist|barber|colorist|masseuse|receptionist|nail technician|assistant|owner|therapist",
        "place": "waiting area|treatment room|lounge|steam room|chair|changing room|studio",
        "work": "haircut|manicure|pedicure|massage|facial|shave|coloring|blow-dry|waxing|trim|highlights*|fade",
    },
    "garage": {
        "names": "garage|body shop|tire shop|dealership|car wash|auto repair shop|bike shop",
        "food": "waiting room coffee|vending machine coffee",
        "person": "mechanic|salesman|technician|owner|service advisor|cashier|crew*|apprentice",
        "place": "waiting room|showroom|workshop|parking lot|office|restroom",
        "work": "repair|oil change|paint job|inspection|brake job|alignment|tire rotation|detailing|estimate|"
        "welding|transmission rebuild|battery replacement|diagnosis|tune-up",
    },
    "clinic": {
        "names": "dental office|clinic|animal hospital|eye doctor|pharmacy|physiotherapy practice|urgent care",
        "food": "waiting room tea|cafeteria lunch",
        "person": "dentist|hygienist|doctor|nurse|vet|pharmacist|receptionist|optometrist|surgeon|therapist",
        "place": "waiting room|exam room|office|reception|parking lot|recovery room",
        "work": "cleaning|filling|checkup|surgery|billing|exercise plan|eye exam|paperwork|scheduling|crown|x-ray",
    },
    "shop": {
        "names": "bookstore|furniture store|grocery store|florist|hardware store|toy shop|record store|boutique",
        "food": "sample cheese|bakery section bread|deli sandwich|fruit|olives*",
        "person": "salesperson|florist|clerk|cashier|owner|manager|staff*|security guard|delivery driver",
        "place": "store|fitting room|basement|aisle|window display|reading corner|warehouse|greenhouse",
        "work": "delivery|packaging|gift wrapping|assembly|selection|bouquet|return process|online order|layout",
    },
    "leisure": {
        "names": "gym|cinema|yoga studio|bowling alley|museum|climbing hall|theater|swimming pool|golf course",
        "food": "popcorn|smoothie|snack bar hot dog|protein shake|nachos*|milkshake|ice cream",
        "person": "trainer|instructor|guide|lifeguard|usher|coach|ticket clerk|staff*|attendant",
        "place": "locker room|main hall|pool|lobby|balcony|showers*|exhibition|seats*|sauna|studio|parking lot",
        "work": "class|tour|sound|lighting|membership plan|screening|course|schedule|lesson|show|projection",
    },
}
"""What each business is called and what people review there; a star marks a plural."""

WHO = (
    "my sister|my neighbor|my boss|the guidebook|a friend|my cousin|my wife|my husband|my coworker|the blog|"
    "everybody|our guide|my roommate|the taxi driver|my aunt|the local paper|my brother|half the internet"
)
DAYS = (
    "on a Monday|on a rainy Tuesday|on Wednesday night|on a Friday evening|on Saturday morning|on Sunday|"
    "for our anniversary|for my birthday|after a concert|on the way home|during a road trip|with the kids|"
    "with my parents|at lunch time|late in the evening|with a group of six|on a whim|between two meetings|"
    "before a flight|over the holidays|in the middle of July|on our last day in town"
)
FACTS = (
    "We were a party of {num}.|Parking is around the corner.|It is {num} minutes from our house.|"
    "We paid about {num} dollars.|They open at {hour}.|I had a coupon from {who2}.|"
    "There is a second branch downtown.|We stayed for about {num} minutes.|They take cards and cash.|"
    "I had been there {num} times before.|The menu is on the wall.|It is next to the {landmark}.|"
    "It was raining outside.|We had made a reservation.|You will find it behind the {landmark}.|"
    "My order number was {num}.|It took {num} minutes by bus.|They have been in business for {num} years.|"
    "It was the week before {holiday}.|I wore my old {color} coat.|The sign outside is {color}.|"
    "The chairs are {color} and the walls are {color2}.|I was there at {hour} o'clock."
)
LANDMARKS = (
    "post office|library|train station|river|bank|fire station|church|school|park|old mill|bridge|city hall|"
    "gas station|stadium|courthouse|market|harbor|lighthouse|theater|university"
)
HOLIDAYS = "Christmas|Easter|Thanksgiving|Halloween|New Year|Labor Day|Memorial Day|graduation"
COLORS = "red|blue|green|yellow|gray|brown|white|black|orange|purple|beige|pink|turquoise"
