"""The vocabulary of the generated stories: people, places, things, reasons, and how each event may be told.

Called by prose.py only. Strings are split on "|" so that the lists stay short and can hold phrases.
"""

WOMEN = (
    "Marta|Ilse|Nora|Agnes|Petra|Lena|Tilda|Rosa|Edith|Hanna|Vera|Olive|Freda|Mabel|Sina|Greta|Wilma|Judith|"
    "Clara|Ida|Martha|Ottilie|Pauline|Ruth|Sabine|Thea|Ursula|Yvonne|Zora|Bertha|Celia|Dora|Elsa"
)
MEN = (
    "Anton|Jonas|Peter|Oskar|Emil|Tobias|Konrad|Leo|Hugo|Simon|Walter|Felix|Bruno|Albert|Carl|Edgar|Otto|Theo|"
    "Anselm|Benno|Caspar|David|Ernst|Franz|Georg|Henrik|Ivo|Jakob|Kilian|Lorenz|Matthias|Niklas|Paul"
)
TRADES = (
    "baker|miller|carpenter|shepherd|fisher|weaver|tailor|gardener|clockmaker|teacher|potter|beekeeper|"
    "ferryman|innkeeper|blacksmith|postman|doctor|cobbler|painter|fiddler|woodcutter|glassblower|candlemaker|"
    "librarian|mason|hunter|sailor|barber|nurse|roofer|butcher|brewer|printer|saddler|farmer|lamplighter|"
    "bookbinder|goldsmith|chimney sweep|watchman|notary|actor|singer|juggler|soldier|bricklayer|miner|dyer"
)
TRAITS = (
    "old|young|clever|quiet|stubborn|cheerful|patient|proud|shy|restless|honest|careful|curious|gentle|grumpy|"
    "brave|lazy|absent-minded|talkative|generous|thrifty|dreamy"
)
PLACES = (
    "at the mill|in the orchard|on the hill|by the river|in the market square|at the old bridge|in the forest|"
    "on the pier|in the church|at the inn|in the school|by the lake|in the stable|at the station|"
    "in the library|on the island|in the vineyard|at the lighthouse|in the cellar of the town hall|by the well|"
    "in the meadow|at the crossroads|in the ruins|at the quarry|in the greenhouse|by the waterfall|"
    "at the barracks|in the attic of the museum|on the ferry|at the brewery|in the cave|by the city wall|"
    "on the rooftop|at the windmill|in the monastery|at the fairground|in the courthouse|by the canal|"
    "on the beach|at the sawmill|in the valley|at the border|in the theater|at the bathhouse|in the tunnel|"
    "on the balcony of the palace"
)
THINGS = (
    "kettle|lantern|ladder|hammer|violin|map|key|blanket|basket|rope|mirror|clock|saddle|umbrella|telescope|"
    "bell|knife|pot|hat|pair of boots|letter|book|coin|ring|wheel|saw|flute|lamp|needle|chair|cheese|"
    "jar of honey|sack of flour|bottle of oil|box of nails|bundle of wool|painting|drum|shovel|candle|compass|"
    "hourglass|lute|crown|bucket|broom|pillow|spoon|bowl|barrel|anchor|sail|net|fishing rod|plow|spade|axe|"
    "comb|glove|coat|scarf|belt|trumpet|harp|puppet|chessboard|deck of cards|globe|ladle|sewing box|inkwell|"
    "quill|loaf of bread|sack of apples|crate of oranges|jar of pickles|bag of coffee|wheelbarrow"
)
MAKES = (
    "copper|silver|wooden|blue|red|green|small|heavy|broken|golden|rusty|yellow|black|white|old|new|tiny|"
    "painted|strange|plain|beautiful|dusty|shiny|borrowed|round|square|crooked|polished|cracked|striped|"
    "leather|iron|brass|marble|woolen|silk|foreign|lucky|forgotten|precious|worthless|enormous|noisy|faded|"
    "carved|gray|purple|stolen|famous"
)
REASONS = (
    "to repair the roof before winter|for the wedding of {his} sister|to win the summer fair|"
    "to pay back an old debt|to cheer up a sick neighbor|to finish a bet with the mayor|"
    "for a journey to the coast|to keep a promise|for the birthday of {his} mother|to open a shop of {his} own|"
    "to surprise the children|to prove that {he} could|for the harvest feast|to help a traveler|"
    "because the winter had been long|to teach {his} nephew a lesson"
)
TIMES = (
    "in the morning|at noon|before dawn|late in the evening|on a Monday|the next day|three days later|"
    "after breakfast|at the end of the week|when the bells rang|after the rain|that night|an hour later|"
    "as soon as the sun was up|a week later"
)
WEATHERS = (
    "the rain fell without a pause|the sun was warm|a cold wind blew from the north|fog lay over the fields|"
    "it had begun to snow|the sky was clear and blue|dark clouds were coming|the air smelled of summer|"
    "leaves were falling|the moon was full|thunder rolled in the distance|frost covered the grass|"
    "it was too hot to work|a light breeze moved the branches"
)
BEINGS = (
    "crows|sheep|children|geese|cats|soldiers|women|boys|dogs|goats|swallows|strangers|horses|farmers|pigeons|"
    "ducks|monks|bakers|poets|bees|frogs|mules|nuns|thieves|tourists|owls|rabbits|musicians|prisoners"
)
DOINGS = (
    "were resting|were quarreling|sat|were playing|stood|were waiting|were singing|slept|were walking|"
    "were looking for food|were dancing|whispered|were trembling|were counting coins|were telling jokes|lay|"
    "were shouting"
)
SPOTS = (
    "under a tree|beside the path|on the wall|in the shade|near the gate|along the fence|behind a cart|"
    "on the steps|by the door|in a ditch|on a heap of straw|around a fire|inside an old barrel|"
    "between two carts|at the edge of the road|on a stone"
)
NUMBERS = "two|three|four|five|six|seven|a dozen|some|many|a few"
MOODS = (
    "happy|worried|hungry|hopeful|angry|sad|calm|nervous|proud|lonely|excited|ashamed|relieved|surprised|bored|"
    "grateful|jealous|homesick|confused|thirsty|thoughtful|impatient|content|furious|timid"
)

OPENING = (
    "{h} was a {trait} {trade} who lived {home}.|"
    "There once was a {trait} {trade} called {h}, who lived {home}.|"
    "Everyone {home} knew {h}, the {trait} {trade}.|"
    "{h} had been a {trade} {home} for {years} years, and a {trait} one.|"
    "Of all the people {home}, nobody was as {trait} as {h}, the {trade}."
)
WANT = (
    "One day {he} needed a {x} {why}.|{why}, {he} needed a {x}.|"
    "What {he} wanted was a {x} {why}, and {he} had none.|{he} had looked everywhere for a {x} {why}.|"
    '"I must have a {x}", {he} said, "and I must have it soon." It was {why}.|'
    "For weeks {he} had thought of nothing but a {x}, {why}."
)
TRAVEL = (
    "{time} {h} went to look {there}.|{h} set out {time}, and soon {he} was {there}.|"
    "So {he} walked until {he} was {there}.|{time} {he} could be seen {there}.|"
    "It took {h} {years} minutes, and then {he} stood {there}.|Cold and {mood}, {h} arrived {there}.|"
    "{he} took the long way and was {there} {time}.|Nobody had told {him} the way, yet {he} was {there} {time}."
)
MEET = (
    "There {he} met {o}, a {otrait} {otrade}.|{o} the {otrade} was there, as {otrait} as ever.|"
    "A {otrait} {otrade} by the name of {o} greeted {him}.|The first person {he} saw was {o}, the {otrade}.|"
    "{o} was sitting there and looked {mood}. {ohe} was a {otrade}, and a {otrait} one."
)
ASK = (
    '"Have you seen a {x}?" asked {h}.|"I am looking for a {x}", said {h}.|{h} asked {ohim} about the {x}.|'
    '"They say that you know where to find a {x}", {he} began.|'
    '{he} told {ohim} about the {x} and why {he} needed it.|"Do you know who has a {x}?" {he} asked.'
)
HAS = (
    '"I have one", said {o}, "but I will not give it away for nothing. Bring me a {y}."|'
    '{o} nodded. "It is yours if you bring me a {y}."|'
    '"What would you give for it?" asked {o}. "I could use a {y}."|'
    '{ohe} did have one, and would trade it for a {y}.|"My {x} for a {y}", said {o}, "that is my price."|'
    '{o} thought for a while. "I lost my {y} last spring. Find me another, and the {x} is yours."'
)
HINT = (
    '"Ask {p}, who is {there}", said {o}.|'
    "{o} had none, but {p} had one, {ohe} said, and could be found {there}.|"
    '"I sold mine to {p}", {ohe} answered. "Look {there}."|'
    '"If anyone has a {x}, it is {p}", said {o}. "Go and look {there}."|'
    '{ohe} shook {ohis} head. "Not I. But {p} does, and works {there} these days."'
)
RUMOR = (
    '"There is a {x} lying {there}", said {o}. "Nobody wants it."|'
    '{o} remembered a {x} that someone had left {there}.|"I saw one {there} not long ago", {ohe} said.|'
    '"Look {there}", said {o}, "and look twice."|'
    '"Children were playing with a {x} {there}", {ohe} answered. "Perhaps it is still there."'
)
FIND = (
    "And there it was: the {x}.|It did not take long to find the {x}.|Under some straw {he} found the {x}.|"
    "The {x} was exactly where it should be, and {he} picked it up.|"
    "{he} had almost given up when {he} saw the {x}.|"
    "{he} searched until dark, and at last {he} held the {x} in {his} hands."
)
TRADE = (
    '{o} took the {y} and handed over the {x}.|"Here is your {y}", said {h}, and {o} gave {him} the {x}.|'
    "They shook hands: the {y} for the {x}.|"
    "{o} was so pleased with the {y} that {ohe} brought the {x} at once.|"
    "{h} put the {y} on the table. Without a word {o} fetched the {x}.|"
    '"A {y}!" cried {o}. "Then the {x} belongs to you."'
)
HOME = (
    "{time} {h} was back {home} with the {x}.|{he} carried the {x} home and smiled all the way.|"
    "{h} went home with the {x} {time}.|"
    "With the {x} under {his} arm, {he} returned to the place {home} where {he} lived."
)
ENDING = (
    "And from that day on {h} was no longer {mood}.|"
    '"It was only a {x}", {he} used to say, "but I made {count} on the way."|'
    "The {x} is still there, and if you ask {him}, {he} will show it to you.|"
    "{he} never told anyone how many miles {he} had walked for it.|"
    "That is how a {trade} came to own a {x}, and why {o} still laughs about it.|"
    "Later {he} gave the {x} to {o}, who needed it more.|"
    "{he} slept well that night, for the first time in {years} days.|"
    "In the end the {x} broke after a week, but {h} only laughed."
)
GAINS = "a friend|two friends|three friends|a few friends|one friend and one enemy"
REFLECT = (
    '{he} felt {mood} and did not know why.|"If only it were that easy", thought {h}.|'
    "For a moment {he} wanted to go home.|"
    "{he} had not eaten since the day before, so {he} shared some bread with {friend}.|"
    "{he} hummed a song that {his} father had taught {him}.|{h} was {mood}, but {he} did not show it.|"
    "{he} thought of the {x} and walked faster.|{his} shoes were wet and {his} hands were cold.|"
    'On the way {he} lost a button and found a feather.|"A {trade} does not give up", {he} told {friend}.'
)
FRIENDS = "a dog|a stranger|an old woman|a boy with a goat|two monks|a hungry cat|a soldier|a little girl|the postman"
GOSSIP = (
    "People said that {gossip}.|On the way {he} heard that {gossip}.|"
    '"Did you know", somebody said, "that {gossip}?"|It was the week in which {gossip}.|'
    "{h} did not believe that {gossip}.|A letter had come: {gossip}."
)
RUMORS = (
    "the {one} had lost a {thing} {place}|the {one} was {mood} because of the {two}|"
    "the {one} and the {two} were to be married {place}|{beings} had been seen {place}|"
    "the {two} had sold a {thing} to the {one}|the {one} would leave {time}|a {thing} had been found {place}|"
    "the {one} owed the {two} a {thing}|nobody had been {place} since the {one} left|"
    "the {two} had taught {beings} to dance {place}|"
    "the {one} had been {mood} ever since the {two} took the {thing}|"
    "the {one} had {done} the {thing} of the {two} {place}|"
    "the {two} and the {one} had {done} each other {place}|the {one} had {done} the {two} {time}, {how}|"
    "somebody had {done} the {thing} {place}, {how}|the {one} had never {done} anyone who was {mood}|"
    "{beings} had {done} the {two} {place}"
)
DONE = (
    "hidden|praised|followed|forgotten|painted|insulted|rescued|cheated|recognized|ignored|visited|frightened|"
    "accused|thanked|described|drawn|watched|surprised|hired|carried|dropped|washed|weighed|counted|measured|"
    "kissed|robbed|invited|blamed|admired|copied|locked up|left behind|looked after|laughed at|waited for|"
    "asked about|dreamed of|written about|thrown out"
)
HOW = (
    "quietly and without thanks|out of pity|by mistake|for the third time|in front of everyone|"
    "against all advice|with great care|under a false name|as a joke|for a handful of coins|"
    "to nobody's surprise|without a reason|while the town slept|with tears in both eyes|"
    "in exchange for silence|long before the war|just as the clock struck"
)
