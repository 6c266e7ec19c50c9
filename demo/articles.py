"""Small-town news from a seed: an article of any length, and the summary of its facts.

A topic is five or six facts. The article tells them in order, from its first sentence to nearly its last, with
filler in between that names other people, places and numbers; the summary restates each in one sentence. In the
templates {slot} is drawn once a story, {~slot} afresh each time, and (a|b) is a choice: even in the article, about
70 to 30 in the summary. The summary's choices depend on nothing in the article, so no model can foresee them:
greedy decoding takes the likelier wording and keeps it in any precision, sampling scores visibly less.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

MEDIAN_WORDS, SPREAD, MOST_WORDS = 165, 0.5, 345


@dataclass(frozen=True)
class Fact:
    summary: str
    article: tuple[str, ...]


@dataclass(frozen=True)
class Topic:
    facts: tuple[Fact, ...]
    fillers: tuple[str, ...]
    kinds: Mapping[str, str]  # slot -> what it may be, one of a|b|c


def fact(summary: str, *article: str) -> Fact:
    return Fact(summary, article)


def generate(seed: int | Random) -> tuple[str, str]:
    """One story: (article, summary)."""
    rng = seed if isinstance(seed, Random) else Random(seed)
    story = Story(rng, rng.choice(TOPICS))
    return story.article(), story.summary()


class Story:
    def __init__(self, rng: Random, topic: Topic) -> None:
        self.rng, self.topic = rng, topic
        self.model_spec: dict[str, str] = {}

    def article(self) -> str:
        told = [self.tell(self.rng.choice(fact.article)) for fact in self.topic.facts]
        words = sum(len(sentence.split()) for sentence in told)
        target = MOST_WORDS + 1.0
        while target > MOST_WORDS:
            target = MEDIAN_WORDS * self.rng.lognormvariate(0, SPREAD)
        after: list[list[str]] = [[] for _ in told]  # the filler that follows each fact
        for filler in self.fillers():
            if words >= target:
                break
            last = not after[-1] and self.rng.random() < 0.05  # the ending is a fact, or one sentence away
            place = len(told) - 1 if last else self.rng.randrange(len(told) - 1)
            after[place].append(self.tell(filler))
            words += len(after[place][-1].split())
        return " ".join(" ".join([sentence, *more]) for sentence, more in zip(told, after, strict=True))

    def fillers(self) -> list[str]:
        """Every filler once: the topic's own come early, so that short stories stay on their topic."""
        own, common = list(self.topic.fillers), list(FILLERS)
        self.rng.shuffle(own)
        self.rng.shuffle(common)
        mixed = own[:4] + common[:4]
        self.rng.shuffle(mixed)
        return mixed + own[4:] + common[4:]

    def summary(self) -> str:
        return " ".join(self.tell(fact.summary, first=0.7) for fact in self.topic.facts)

    def tell(self, template: str, first: float | None = None) -> str:
        """The template in words; first: how often a choice takes its first option, None for evenly."""

        def choose(match: re.Match[str]) -> str:
            options = match[1].split("|")
            if first is not None and self.rng.random() < first:
                return options[0]
            return self.rng.choice(options if first is None else options[1:])

        text = re.sub(r"\(([^()]*\|[^()]*)\)", choose, template)
        text = re.sub(r"\{(~?)(\w+)\}", lambda match: self.fill(match[2], fresh=bool(match[1])), text)
        return " ".join(text.split())

    def fill(self, slot: str, fresh: bool) -> str:
        if fresh:
            return self.draw(slot)
        if slot not in self.model_spec:
            value = self.draw(slot)
            while value in self.model_spec.values():  # two slots of one story are never the same
                value = self.draw(slot)
            self.model_spec[slot] = value
        return self.model_spec[slot]

    def draw(self, slot: str) -> str:
        kind = slot.rstrip("0123456789")
        if kind in KINDS:
            return KINDS[kind](self.rng)
        return self.rng.choice((self.topic.kinds.get(kind) or WORDS[kind]).split("|"))


def syllables(*parts: str) -> Callable[[Random], str]:
    lists = [part.split("|") for part in parts]
    return lambda rng: "".join(rng.choice(part) for part in lists)


def number(low: int, high: int, step: int = 1, form: str = "{:,}") -> Callable[[Random], str]:
    return lambda rng: form.format(rng.randrange(low, high, step))


first_name = syllables(
    "Mar|Jul|Dan|Kar|Rob|Al|Ter|Nor|Lin|Sel|Vic|Hel|Or|Fel|Cor|Ben|Jor|Mir|Tam|Wil|Ros|Ad|Lor|Sam|Ed|Cal|Jas|Ol",
    "ina|an|ia|o|en|ette|a|is|ella|on|us|ine|ard|ika|win|ene|ert|ice",
)
surname = syllables(
    "Hal|Brack|Tol|Ven|Mor|Pel|Car|Dor|Kes|Lam|Whit|Rad|Stan|Gar|Fen|Hol|Bur|Lang|Ash|Tar|Quil|Ros|Sum|Wex|Cham|Dun",
    "|er|en|a|i|o|in|ing",
    "son|ley|man|well|ton|vick|ridge|berg|sen|more|sky|worth|dale|lund|shaw|croft|smith|ney",
)
town = syllables(
    "Ash|Birch|Cald|Dray|Elm|Farn|Glen|Hart|Iver|Kel|Lark|Mill|North|Oak|Pen|Quarr|Raven|Salt|Thorn|Up|Win|Yar|Stone"
    "|Bram|Clay|Dun|Har|Lin",
    "|er|en|a|ing|s|o|ow",
    "ford|brook|ham|mouth|bury|wick|stead|haven|port|field|bridge|stow|minster|gate|cester|ville|moor|cliff|burn|wold",
)

MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
SCORES = "1-0|2-0|3-0|4-0|2-1|3-1|4-1|5-1|3-2|4-2|5-2|4-3|5-3|6-3"
KINDS: dict[str, Callable[[Random], str]] = {
    "town": town,
    "surname": surname,
    "person": lambda rng: f"{first_name(rng)} {surname(rng)}",
    "firm": lambda rng: f"{surname(rng)} {rng.choice(('Brothers', 'Group', 'Works', 'Partners', 'Supply'))}",
    "few": number(11, 60),
    "small": number(3, 12),
    "num": number(101, 990),
    "thousands": number(1_100, 29_900, 100),
    "year": number(2027, 2040, form="{}"),
    "past": number(1880, 2015, form="{}"),
    "age": number(19, 80),
    "teen": number(12, 19),
    "percent": number(13, 80),
    "minutes": number(12, 89),
    "marathon": number(131, 199),
    "speed": number(61, 119),
    "price": number(6, 49, form="${}"),
    "date": lambda rng: f"{rng.choice(MONTHS.split('|'))} {rng.randrange(2, 29)}",
    "clock": lambda rng: f"{rng.randrange(2, 12)}:{rng.randrange(10, 60)}",
    "sum": number(1_150, 49_950, 50, form="${:,}"),
    "money": lambda rng: f"${rng.randrange(2, 60)}.{rng.randrange(1, 10)} million",
    "score": lambda rng: rng.choice(SCORES.split("|")),
}

WORDS = {
    "day": "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday",
    "month": MONTHS,
    "job": "baker|nurse|teacher|plumber|farmer|librarian|bus driver|carpenter|student|lawyer|dentist|gardener"
    "|mechanic|waiter|painter|butcher|tailor|violinist",
    "color": "green|blue|red|yellow|silver|white|orange|purple",
    "cause": "fire brigade|children's hospital|animal shelter|village school|food bank|church roof|youth orchestra"
    "|sailing club",
    "adjective": "remarkable|puzzling|important|thrilling|regrettable|unusual|shameful|hopeful|sobering",
    "weather": "a late frost|a dry spring|summer hail|a wet June|a mild winter|cold nights|heavy rain|a long drought",
    "far": "north|south|east|west",
}

TOPICS = (
    Topic(  # a town council's project
        kinds={
            "project": "swimming pool|footbridge|bus station|skate park|public library|market hall|cycle path"
            "|fire station|sports hall|music school",
            "reason": "heavy traffic|rising rents|years of flooding|complaints from parents|a growing population"
            "|a leaking roof|broken pipes|poor lighting",
        },
        facts=(
            fact(
                "{town} council (approved|backed) a (new|modern) {project} on {day}.",
                "The town council of {town} voted on {day} to build a new {project}.",
                "A new {project} will be built in {town}, councilors decided on {day}.",
            ),
            fact(
                "The (scheme|plan) will (cost|require) {money}.",
                "The work is expected to cost {money}, (most|two thirds|about half) of it from a state fund.",
                "Officials put the bill at {money}, a sum that (surprised some residents|had been kept quiet).",
            ),
            fact(
                "Mayor {person} (blamed|pointed to) {reason}.",
                "Mayor {person} said the town could wait no longer because of {reason}.",
                '"We had to act because of {reason}," said Mayor {person}.',
            ),
            fact(
                "(Opponents|Critics) (collected|gathered) {num} (signatures|names).",
                "A petition against the plan has been signed by {num} people.",
                "Not everyone agrees: {num} people have put their names to a petition against it.",
            ),
            fact(
                "{firm} (won|secured) the (contract|job) and will (employ|hire) {few} (workers|people).",
                "The contract went to {firm}, which will put {few} workers on the site.",
                "A regional company, {firm}, won the contract and promised work for {few} people.",
            ),
            fact(
                "(Work|Building) (starts|begins) in {month} and (ends|finishes) in {year}.",
                "Digging starts in {month}, and the doors should open in {year}.",
                "If all goes well, the first stone will be laid in {month} and the last in {year}.",
            ),
        ),
        fillers=(
            "An earlier plan from {~past} was dropped after an argument about parking.",
            "The debate in the council chamber lasted until {~clock}, longer than any other this year.",
            "Drawings of the site can be seen in the town hall until {~month}.",
            "Councilor {~person} voted in favor but asked for better lighting and more benches.",
            'Shopkeeper {~person} said she was tired of promises. "I will believe it when I see a crane," she said.',
            "A similar project in {~town} took {~small} years longer than planned.",
            "The land was once used as a timber yard and has stood empty since {~past}.",
            "Opposition councilor {~surname} left the room before the vote.",
        ),
    ),
    Topic(  # a storm
        kinds={"bone": "leg|wrist|ankle|rib|collarbone|elbow|shoulder|nose"},
        facts=(
            fact(
                "{town} was (hit|struck) by a (storm|gale) on {day} that (damaged|unroofed) {few} (houses|homes).",
                "A violent storm swept through {town} on {day} night and tore the roofs from {few} houses.",
                "Strong winds battered {town} late on {day}, leaving {few} houses without a roof.",
            ),
            fact(
                "(Gusts|Winds) (reached|hit) {speed} miles an hour in {town2}.",
                "The weather station in {town2} measured gusts of {speed} miles an hour.",
                "Forecasters said the wind had peaked at {speed} miles an hour, recorded in {town2}.",
            ),
            fact(
                "(About|Some) {thousands} (households|customers) lost power.",
                "The lights went out in {thousands} households when trees fell on the lines.",
                "Power failed in {thousands} households, the electricity company said.",
            ),
            fact(
                "{person}, a {job}, (suffered|had) a broken {bone}.",
                "A {job}, {person}, was taken to the hospital with a broken {bone}.",
                "Doctors treated {person}, a {job} who was hit by a branch, for a broken {bone}.",
            ),
            fact(
                "Fire chief {person2} (reported|counted) {num} (calls|emergencies).",
                "Fire chief {person2} said her crews had answered {num} calls before dawn.",
                '"We took {num} calls in one night," said fire chief {person2}.',
            ),
            fact(
                "Schools (reopen|open) on {day2} and repairs (last|continue) until {month}.",
                "Schools will stay closed until {day2}, and the repairs may take until {month}.",
                "Classes resume on {day2}, but builders will be busy until {month}.",
            ),
        ),
        fillers=(
            "The worst storm in living memory, in {~past}, flattened the pier and two churches.",
            "Sandbags were handed out from a truck near the station.",
            "{~person} spent the night in the cellar with two dogs and a radio.",
            "Ferries to {~town} were canceled, and buses ran {~minutes} minutes late.",
            "A trampoline was found on the roof of a bank, {~small} streets from its garden.",
            "Insurance agent {~person} advised people to photograph everything before tidying up.",
            "Cows wandered along the main road until {~clock} in the morning.",
            "The river rose quickly but stayed {~few} inches below the top of the wall.",
        ),
    ),
    Topic(  # a sports match
        kinds={
            "injury": "knee injury|red card|twisted ankle|bleeding nose|sore back|pulled muscle",
            "virtue": "patience|courage|discipline|energy|calm|humor|stamina",
            "place": "second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth",
        },
        facts=(
            fact(
                "{town} (beat|defeated) {town2} {score} on {day} before {thousands} (fans|spectators).",
                "The footballers of {town} won {score} against {town2} on {day}, cheered on by {thousands} fans.",
                "There was singing in {town} on {day} after a {score} win over {town2}"
                " that {thousands} fans had come to see.",
            ),
            fact(
                "{person} (scored|struck) (first|early), after {minutes} minutes.",
                "Striker {person} opened the scoring after {minutes} minutes with a shot from the left.",
                "The first goal came after {minutes} minutes, when {person} headed in a corner.",
            ),
            fact(
                "Goalkeeper {person2} (saved|stopped) a penalty (late|near the end).",
                "Goalkeeper {person2} dived the right way and kept out a penalty.",
                "A penalty could have changed everything, but goalkeeper {person2} held it.",
            ),
            fact(
                "Visiting captain {surname} (left|went off) with a {injury}.",
                "The visitors lost their captain, {surname}, who left the field with a {injury}.",
                "For {surname}, captain of the visitors, the match ended early with a {injury}.",
            ),
            fact(
                "Coach {person3} (praised|admired) the team's {virtue}.",
                '"What I liked most was the {virtue}," said the winning coach, {person3}.',
                "Coach {person3} spoke at length about the {virtue} of a young team.",
            ),
            fact(
                "The (club|side) is now {place} and (visits|plays) {town3} (next|again) on {day2}.",
                "The win lifts the club to {place} place before a trip to {town3} on {day2}.",
                "Now {place} in the table, the team travels to {town3} on {day2}.",
            ),
        ),
        fillers=(
            "The grass was wet, and both teams slipped often in the opening minutes.",
            "Referee {~person} needed a new whistle after the first half.",
            "The two clubs have met {~few} times since {~past}.",
            "Midfielder {~person} hit the post twice and laughed about it afterwards.",
            "A brass band from {~town} played at half time.",
            "The stand, built in {~past}, is to be repainted before {~month}.",
            "Ticket sales have risen by {~percent} percent since last season.",
            "Substitute {~surname} came on for the last {~small} minutes.",
        ),
    ),
    Topic(  # a company opens
        kinds={
            "plant": "glass factory|bicycle factory|furniture workshop|paper mill|chocolate factory|battery plant"
            "|call center|shoe factory|toy factory",
            "asset": "railway link|skilled workers|cheap power|deep harbor|clean water|quiet roads|empty warehouses",
        },
        facts=(
            fact(
                "{firm} (will open|plans) a {plant} in {town} (in|this) {month}.",
                "The manufacturer {firm} is to open a {plant} in {town} in {month}.",
                "A {plant} will open its gates in {town} in {month}, the owner, {firm}, announced.",
            ),
            fact(
                "It (creates|brings) {num} (jobs|positions).",
                "At first there will be work for {num} people in two shifts.",
                "The company expects to fill {num} jobs, (many|most) of them full-time.",
            ),
            fact(
                "The (investment|price) is {money}, (with|including) {few} percent from the (state|government).",
                "The investment comes to {money}, and the state pays {few} percent of it.",
                "Building and machines will cost {money}, of which {few} percent is a state grant.",
            ),
            fact(
                "Chief executive {person} (praised|liked) the {asset}.",
                "Chief executive {person} said the choice had been easy because of the {asset}.",
                '"What decided it was the {asset}," said {person}, the chief executive.',
            ),
            fact(
                "Union leader {person2} (demands|wants) {price} an hour.",
                "Union leader {person2} welcomed the news but asked for pay of {price} an hour.",
                "Pay should be no lower than {price} an hour, said {person2}, who leads the union.",
            ),
            fact(
                "(Applications|Forms) close on {date} and training (begins|starts) in {town2}.",
                "Applications are open until {date}, and training will take place in {town2}.",
                "Anyone interested has until {date} to apply; new staff will be trained in {town2}.",
            ),
        ),
        fillers=(
            "The last large employer, a brickworks, closed in {~past}.",
            "A ribbon was cut by {~person}, who turned {~age} on the same day.",
            "Trucks will use the ring road, not the center, the planning office said.",
            "The roof will carry {~num} solar panels.",
            "A competitor from {~town} had looked at the same site in {~past}.",
            "Neighbor {~person} worries about noise, but hopes her son will find work.",
            "Unemployment in the district has fallen by {~percent} percent since {~past}.",
            "The canteen will be open to the public at noon.",
        ),
    ),
    Topic(  # a find of science
        kinds={
            "find": "fossil whale|buried road|stone circle|hidden cave|bronze sword|sunken boat|clay tablet"
            "|painted wall|burial mound|mammoth tusk",
            "doing": "repairing a fence|mapping a stream|testing a drone|picking mushrooms|digging a well"
            "|teaching students|chasing a goat",
        },
        facts=(
            fact(
                "{town} (scientists|researchers) (found|discovered) a {find} (near|outside) {town2}.",
                "Scientists from the University of {town} have found a {find} in a field near {town2}.",
                "A {find} has come to light near {town2}, the University of {town} reports.",
            ),
            fact(
                "It is (about|roughly) {thousands} years old.",
                "Tests of the soil around it point to an age of {thousands} years.",
                "It is believed to be {thousands} years old, more than anyone had guessed.",
            ),
            fact(
                "{person} (noticed|spotted) it in {month} while {doing}.",
                "The first to notice it was {person}, who was {doing} in {month}.",
                "It was in {month} that {person}, while {doing}, saw something odd.",
            ),
            fact(
                "It (lies|rests) {few} feet (deep|underground).",
                "It lies {few} feet below the surface, under clay and gravel.",
                "The diggers had to go down {few} feet before they reached it.",
            ),
            fact(
                "Professor {person2} (called|considers) it {adjective}.",
                "Professor {person2}, who was not part of the team, called it {adjective}.",
                '"The find is {adjective}," said Professor {person2}, an expert from abroad.',
            ),
            fact(
                "A museum in {town3} (offered|promised) {money} for (research|further work).",
                "A museum in {town3} has offered {money} so that the work can go on.",
                "The next stage will be paid for by a museum in {town3}, which is giving {money}.",
            ),
        ),
        fillers=(
            "A tent now covers the place, and a guard watches it at night.",
            "Something similar was reported in {~past}, but it turned out to be a joke.",
            "Student {~person} spent {~small} weeks cleaning it with a toothbrush.",
            "The farmer who owns the land, {~person}, has put up a sign asking visitors to close the gate.",
            "Samples have been sent to a laboratory in {~town}.",
            "The full report has {~num} pages and will appear in {~month}.",
            "Geologists say the valley was covered by ice for a long time.",
            "Helpers sifted {~num} buckets of earth by hand.",
        ),
    ),
    Topic(  # a school
        kinds={
            "thing": "weather station|solar boat|robot|telescope|greenhouse|rowing boat|wind turbine|radio station",
            "material": "old bicycles|scrap wood|milk cartons|plastic bottles|used tires|tin cans|broken computers",
            "event": "a power cut|a class trip|a rainy week|a library visit|a bad harvest|a lost bet|a school play",
            "goal": "science books|football nets|sewing machines|music stands|garden tools|lab coats|warm jackets",
        },
        facts=(
            fact(
                "{town} (pupils|students) (built|made) a {thing} from {material}.",
                "Pupils at a school in {town} have built a {thing} out of {material}.",
                "What can be made of {material}? At a school in {town}, the answer is a {thing}.",
            ),
            fact(
                "The (project|work) (took|lasted) {few} weeks and cost ${num}.",
                "They worked on it for {few} weeks and spent ${num}.",
                "It was finished after {few} weeks, at a cost of ${num}.",
            ),
            fact(
                "Teacher {person} had the idea after {event}.",
                "The idea came from {person}, who teaches science, after {event}.",
                '"It all began with {event}," said the science teacher, {person}.',
            ),
            fact(
                "{person2}, {teen}, (led|headed) the (group|team) of {small}.",
                "The group of {small} was led by {person2}, who is {teen}.",
                "At the age of {teen}, {person2} was put in charge of a group of {small}.",
            ),
            fact(
                "It (won|took) first prize in {town2} (ahead of|against) {few2} (schools|rivals).",
                "At a contest in {town2} it won first prize, ahead of {few2} other schools.",
                "The judges in {town2} had seen entries from {few2} schools when they awarded it first prize.",
            ),
            fact(
                "The (prize|money) (pays|will pay) for {goal} in {month}.",
                "With the prize money the school will buy {goal} in {month}.",
                "The prize will be spent on {goal}, which should arrive in {month}.",
            ),
        ),
        fillers=(
            "The school has {~num} pupils and a waiting list.",
            "Headmaster {~person} admitted that he had not believed in it at first.",
            "The first attempt, in {~month}, fell apart in the yard.",
            "Parents brought soup and screws on most weekends.",
            '"My favorite part was the soldering," said {~person}, who wants to be a {~job}.',
            "The caretaker, {~surname}, lent the children his own tools.",
            "A school in {~town} has asked for the drawings.",
            "Homework was not forgotten, the teachers insist.",
        ),
    ),
    Topic(  # a museum
        kinds={
            "objects": "painted maps|glass birds|old toys|silver clocks|steam engines|wooden masks|ship models"
            "|love letters|early cameras",
            "store": "barn|cellar|garage|boathouse|stable|shed|loft|bank vault",
        },
        facts=(
            fact(
                "{town} (museum|gallery) (shows|exhibits) {objects} from {date}.",
                "The town museum of {town} will show a collection of {objects} from {date}.",
                "A collection of {objects} goes on view at the museum in {town} on {date}.",
            ),
            fact(
                "The {num} (pieces|items) (belonged to|come from) {person}, a {job}.",
                "All {num} pieces were collected by {person}, a {job} who rarely spoke about them.",
                "The {num} pieces are the life's work of {person}, a {job}.",
            ),
            fact(
                "They (lay|stood) in a {store} in {town2} for {few} years.",
                "For {few} years they had been lying in a {store} in {town2}.",
                "They were found in a {store} in {town2}, where they had been for {few} years.",
            ),
            fact(
                "Curator {person2} (values|puts) the (finest|best) (piece|one) at {money}.",
                "Curator {person2} believes that the finest piece alone is worth {money}.",
                "The finest piece might sell for {money}, according to curator {person2}.",
            ),
            fact(
                "(Tickets|Seats) cost {price} and {thousands} (visitors|guests) are (expected|hoped for) by {month}.",
                "A ticket costs {price}, and the museum hopes for {thousands} visitors by the end of {month}.",
                "The museum charges {price} and expects {thousands} visitors before it all closes in {month}.",
            ),
        ),
        fillers=(
            "The building was a customs house until {~past}.",
            "Two rooms were painted {~color} for the occasion.",
            "Guide {~person} offers tours for schools on {~day} mornings.",
            "An earlier show, about bridges, drew fewer people than hoped.",
            "The cases were made by a carpenter from {~town}.",
            '"Some of them still smell of smoke," said {~person}, who cleaned each one.',
            "Photographs are allowed, but without a flash.",
            "A catalog of {~num} pages is in preparation.",
        ),
    ),
    Topic(  # a rescue
        kinds={
            "group": "hikers|climbers|sailors|students|cyclists|campers|anglers|tourists",
            "hazard": "thick fog|rising water|deep snow|falling rocks|a fallen tree|a broken boat|loose ice",
            "tool": "a whistle|a mirror|a flashlight|a dying phone|a red jacket|a borrowed radio|a camp fire",
            "harm": "frostbite|shock|a sprained wrist|a cut hand|a bruised hip|sunburn|a mild fever",
        },
        facts=(
            fact(
                "{town} (rescuers|crews) (saved|freed) {few} {group} on {day}.",
                "The mountain rescue service of {town} brought {few} {group} to safety on {day}.",
                "All {few} {group} who went missing near {town} were brought home safe on {day}.",
            ),
            fact(
                "They were (trapped|stranded) by {hazard} for {small} hours.",
                "The group had been held up by {hazard} and waited {small} hours for help.",
                "Because of {hazard} they could move neither forward nor back for {small} hours.",
            ),
            fact(
                "{person}, {age}, (signaled|called) with {tool}.",
                "It was {person}, aged {age}, who drew attention to them with {tool}.",
                "Help came because {person}, who is {age}, had {tool}.",
            ),
            fact(
                "Pilot {person2} (flew|came) in from {town2}.",
                "A helicopter came from {town2} with {person2} at the controls.",
                "From {town2}, pilot {person2} reached the spot by helicopter.",
            ),
            fact(
                "One (man|victim) was (treated|nursed) for {harm}.",
                "A doctor treated one man for {harm}; the others were only tired.",
                "Apart from one man who was treated for {harm}, nobody was hurt.",
            ),
            fact(
                "The (operation|search) (involved|needed) {num} (volunteers|helpers) and cost {sum}.",
                "In the end {num} volunteers had taken part, and the operation had cost {sum}.",
                "The operation, with {num} volunteers, will cost the county {sum}.",
            ),
        ),
        fillers=(
            "The path is marked in {~color} and popular with families.",
            "A warning had been posted at the car park since {~day}.",
            "The last such accident there was in {~past}.",
            "Tea and blankets were waiting at the inn of {~person}.",
            "Search dogs from {~town} joined shortly after {~clock}.",
            '"We sang to keep warm," said {~person}, a {~job}.',
            "The service asks walkers to leave a note about their route.",
            "Two of the radios failed in the cold.",
        ),
    ),
    Topic(  # a train line
        kinds={
            "benefit": "cleaner air|quieter streets|more tourists|faster commutes|cheaper housing|fewer accidents",
            "issue": "noise|lost land|dust|broken fences|frightened sheep|blocked gates|bright lights",
        },
        facts=(
            fact(
                "{town} (regains|gets back) (trains|a rail link) to {town2} in {month} after {few} years.",
                "Passenger trains will run again from {town} to {town2} in {month}, after a break of {few} years.",
                "After {few} years without trains, the line from {town} to {town2} reopens in {month}.",
            ),
            fact(
                "The (trip|journey) (takes|lasts) {minutes} minutes and costs {price}.",
                "The journey will take {minutes} minutes, and a single ticket costs {price}.",
                "Passengers will pay {price} and arrive after {minutes} minutes.",
            ),
            fact(
                "Minister {person} (promised|expects) {benefit}.",
                "Transport minister {person} said the region could look forward to {benefit}.",
                '"It will bring {benefit}," said {person}, the transport minister.',
            ),
            fact(
                "(Engineers|Crews) (replaced|renewed) {few2} miles of track and {small} bridges.",
                "Engineers replaced {few2} miles of track and strengthened {small} bridges.",
                "Before that, {small} bridges and {few2} miles of track had to be renewed.",
            ),
            fact(
                "{firm} (ordered|bought) {small2} {color} trains.",
                "The operator, {firm}, has ordered {small2} trains, all painted {color}.",
                "There will be {small2} trains in {color}, run by {firm}.",
            ),
            fact(
                "Farmer {person2} (complains|protests) about {issue} and (wants|demands) {sum}.",
                "One farmer, {person2}, has gone to court over {issue} and asks for {sum}.",
                "Not so pleased is {person2}, a farmer, who is suing for {sum} over {issue}.",
            ),
        ),
        fillers=(
            "The station clock stopped in {~past} and has now been repaired.",
            "Volunteers cleared brambles from the platform at {~town}.",
            "A steam engine will pull the first train, with a choir on board.",
            "Former signalman {~person}, {~age}, still has the keys to his box.",
            "The bus on the same route carried {~num} people a day.",
            "Bicycles travel free outside the rush hour.",
            "A second line, to {~town}, is being studied.",
            "At {~clock} a test train passed through without stopping.",
        ),
    ),
    Topic(  # a harvest festival
        kinds={"crop": "pumpkin|apple|cherry|onion|honey|walnut|potato|grape|garlic"},
        facts=(
            fact(
                "{town} (welcomed|drew) {thousands} (visitors|guests) to its {crop} festival on {day}.",
                "The {crop} festival in {town} attracted {thousands} visitors on {day}.",
                "On {day} some {thousands} visitors came to {town} for the yearly {crop} festival.",
            ),
            fact(
                "{person} won (first prize|the contest) with a {num} pound (basket|load).",
                "First prize for the heaviest basket went to {person}, with {num} pounds.",
                "Nobody could match the basket of {person}, which weighed {num} pounds.",
            ),
            fact(
                "The (crown|title) (went|passed) to {person2}, a {job} from {town2}.",
                "The festival queen is {person2}, a {job} who grew up in {town2}.",
                "A {job} from {town2}, {person2}, was crowned festival queen.",
            ),
            fact(
                "The (crop|harvest) (fell|shrank) by {percent} percent (after|because of) {weather}.",
                "Growers brought in {percent} percent less than a year ago and blamed {weather}.",
                "After {weather}, the growers said, the harvest was {percent} percent smaller.",
            ),
            fact(
                "(Organizers|The committee) (gave|donated) {sum} to the {cause} (in|during) {month}.",
                "The takings of {sum} will be handed to the {cause} in {month}.",
                "In {month} the {cause} will receive the takings of {sum}.",
            ),
        ),
        fillers=(
            "The parade was led by {~few} tractors and a donkey.",
            "Children from {~town} danced in paper hats.",
            "The festival has been held since {~past}, except in wartime.",
            "Cook {~person} stirred a pot of soup for {~num} people.",
            "A tug of war ended in the pond.",
            "Parking was difficult, and some visitors walked {~small} miles.",
            '"I come for the music," said {~person}, a {~job}.',
            "The beer tent closed at {~clock}, to the regret of many.",
        ),
    ),
    Topic(  # a court case
        kinds={
            "goods": "fake tickets|stolen bicycles|false coins|rotten timber|copied paintings|watered wine"
            "|forged stamps",
            "clue": "a spelling mistake|a phone bill|a security camera|a jealous neighbor|a broken lock"
            "|a missing receipt|a talking parrot",
            "trouble": "gambling debts|a failed business|bad health|family trouble|bad advice|a divorce",
        },
        facts=(
            fact(
                "{town} court (ordered|told) {job} {person} to pay {money}.",
                "A court in {town} has ordered {person}, a {job}, to pay {money}.",
                "The court in {town} reached its verdict: {person}, a {job}, must pay {money}.",
            ),
            fact(
                "The (accused|defendant) (sold|passed) {goods} to {num} (customers|people).",
                "It found that {num} customers had been sold {goods}.",
                "Over several years {num} customers had bought {goods} in good faith.",
            ),
            fact(
                "Judge {person2} (called|considered) the case {adjective}.",
                'Judge {person2} used the word "{adjective}" when reading out the sentence.',
                '"This case is {adjective}," said Judge {person2}.',
            ),
            fact(
                "(Police|Detectives) were (alerted|tipped off) by {clue} in {month}.",
                "Investigators had been put on the trail in {month} by {clue}.",
                "What gave the game away, in {month}, was {clue}.",
            ),
            fact(
                "Lawyer {person3} (cited|blamed) {trouble}.",
                "The defense, led by {person3}, spoke of {trouble}.",
                "Defense lawyer {person3} asked the court to take {trouble} into account.",
            ),
            fact(
                "(An appeal|A challenge) is (possible|allowed) until {date} in {town2}.",
                "An appeal can be lodged in {town2} until {date}.",
                "The defense has until {date} to appeal to the higher court in {town2}.",
            ),
        ),
        fillers=(
            "The public gallery was full, and some people had to stand.",
            "The trial was delayed in {~month} because a juror had the flu.",
            "Prosecutor {~person} had asked for a prison sentence.",
            "One witness, {~person}, had traveled from {~town} by night bus.",
            "The file fills {~few} boxes.",
            "A clerk read out a list of names for {~minutes} minutes.",
            "A similar case in {~past} ended without a verdict.",
            "Outside, photographers waited in the rain.",
        ),
    ),
    Topic(  # an election
        kinds={
            "issue": "rents|potholes|the old harbor|school meals|parking fees|street lights|the bus fares",
            "promise": "free buses|lower fees|more trees|new playgrounds|longer library hours|safer crossings",
        },
        facts=(
            fact(
                "{town} (elected|chose) {person} (as mayor|mayor) with {percent} percent.",
                "Voters in {town} have elected {person} mayor with {percent} percent of the vote.",
                "The next mayor of {town} is {person}, who won {percent} percent of the vote.",
            ),
            fact(
                "{person2}, a {job}, (conceded|gave up) at {clock}.",
                "The other candidate, {person2}, a {job}, admitted defeat at {clock}.",
                "At {clock} the rival candidate, {job} {person2}, called to congratulate.",
            ),
            fact(
                "Turnout was {percent2} percent, the (highest|best) since {past}.",
                "Turnout reached {percent2} percent, which has not happened since {past}.",
                "Not since {past} had so many taken part: turnout was {percent2} percent.",
            ),
            fact(
                "The (campaign|race) was (about|all about) {issue}.",
                "The campaign had turned on one question above all: {issue}.",
                "No subject was debated as fiercely in the campaign as {issue}.",
            ),
            fact(
                "(Officials|Clerks) (recounted|rechecked) {num} (ballots|votes) in {town2}.",
                "In the district of {town2}, {num} ballots had to be counted again.",
                "A recount of {num} ballots was ordered in the district of {town2}.",
            ),
            fact(
                "The (winner|victor) (promised|pledged) {promise} and (takes office|starts) in {month}.",
                "The new mayor, who takes office in {month}, has promised {promise}.",
                "There will be {promise}, the new mayor said, and work on them starts in {month}.",
            ),
        ),
        fillers=(
            "Polling stations opened early, and the lines were short.",
            "A dog was allowed into the polling station on Mill Street.",
            "The outgoing mayor, {~person}, plans to write a book about {~town}.",
            "Posters must be taken down by {~day}.",
            "Poll worker {~person} counted by candlelight when a fuse blew.",
            "Two debates were broadcast by a radio station in {~town}.",
            "The council has {~few} seats, one more than before.",
            "Postal votes arrived in {~num} envelopes.",
        ),
    ),
    Topic(  # animals return
        kinds={
            "animals": "storks|beavers|otters|lynxes|eagles|cranes|wild swans|wolves|sea trout",
            "spot": "a hollow oak|a bird box|a milk churn|a mailbox|a canoe|a haystack|a ruined mill",
            "reason": "cleaner water|new hedges|a hunting ban|mild winters|less noise|old forests",
            "stock": "lambs|hens|fish ponds|ducks|rabbits|bee hives|young trees",
        },
        facts=(
            fact(
                "{town} (welcomed|saw) {animals} (back|again) after {few} years.",
                "For the first time in {few} years, {animals} have been seen in {town}.",
                "There are {animals} in {town} again, {few} years after the last ones left.",
            ),
            fact(
                "Ranger {person} (filmed|photographed) them on {day} from {spot}.",
                "Ranger {person} took pictures of them on {day}, hidden in {spot}.",
                "The proof is a film made on {day} by ranger {person}, with a camera in {spot}.",
            ),
            fact(
                "(Volunteers|Helpers) (counted|found) {small} young in {month}.",
                "In {month}, volunteers counted {small} young ones.",
                "There are {small} young, according to a count by volunteers in {month}.",
            ),
            fact(
                "Biologist {person2} (thanked|credited) {reason}.",
                "Biologist {person2} gives the credit to {reason}.",
                '"The cause is {reason}," said {person2}, a biologist.',
            ),
            fact(
                "Farmers in {town2} (fear|worry) for their {stock} and (want|ask for) {sum}.",
                "Farmers in {town2} are afraid for their {stock} and have asked for {sum}.",
                "In {town2}, where farmers worry about their {stock}, a fund of {sum} is demanded.",
            ),
            fact(
                "A {small2} mile (path|trail) (stays|remains) (closed|shut) until {date}.",
                "So that they are not disturbed, a path of {small2} miles is closed until {date}.",
                "Walkers must avoid {small2} miles of path until {date}.",
            ),
        ),
        fillers=(
            "The last ones were shot in {~past}, as a stuffed pair in the town hall recalls.",
            "A class from {~town} has chosen names for them.",
            "Bird lover {~person} gets up at {~clock} every morning to watch.",
            "Drones are forbidden over the reserve.",
            "The reserve covers {~num} acres of marsh and wood.",
            "Fisherman {~person} says he knew it all along.",
            "Signs in {~color} show where to keep dogs on a leash.",
            "The national park office runs a telephone line for sightings.",
        ),
    ),
    Topic(  # a marathon
        kinds={
            "costume": "a bear suit|a wedding dress|a cook's hat|rubber boots|a pirate hat|a tall wig|dancing shoes",
        },
        facts=(
            fact(
                "{town} (saw|welcomed) {thousands} (runners|athletes) at its marathon on {day}.",
                "The marathon in {town} drew {thousands} runners on {day}.",
                "On {day}, {thousands} runners lined up for the marathon in {town}.",
            ),
            fact(
                "{person}, a {job} from {town2}, (won|finished first) after {marathon} minutes.",
                "The winner was {person}, a {job} from {town2}, who needed {marathon} minutes.",
                "After {marathon} minutes a {job} from {town2}, {person}, crossed the line first.",
            ),
            fact(
                "{person2} (took|won) the women's (race|event) by {few} seconds.",
                "Among the women {person2} was fastest, with a lead of {few} seconds.",
                "The women's race went to {person2}, by {few} seconds.",
            ),
            fact(
                "The oldest (finisher|runner), {person3}, {age}, (wore|chose) {costume}.",
                "The oldest to finish was {person3}, aged {age}, in {costume}.",
                "There was applause for the oldest runner, {person3}, who at {age} ran in {costume}.",
            ),
            fact(
                "The (event|day) (raised|earned) {sum} for the {cause} (in|of) {town3}.",
                "The entry fees brought {sum} for the {cause} in {town3}.",
                "The {cause} in {town3} will receive {sum} from the entry fees.",
            ),
        ),
        fillers=(
            "Bananas ran out at the second table.",
            "A headwind on the bridge slowed everyone down.",
            "The course record, set in {~past}, was not in danger.",
            "Police closed {~small} roads until {~clock}.",
            "{~person} stopped to help a rival with a cramp.",
            "A twin race takes place in {~town} every {~month}.",
            "Doctors had little to do apart from blisters.",
            "Bands played at {~few} corners, not all in tune.",
        ),
    ),
)

FILLERS = (
    '"People here have talked of little else all week," said {~person}, who runs a cafe by the station.',
    "The weather stayed (dry|mild|gray|windy), with (clouds|fog|showers) over the hills toward {~town}.",
    "{~town}, {~few} miles to the {~far}, has about {~thousands} inhabitants.",
    "In {~past} a fire in {~town} destroyed {~few} houses and the old mill.",
    "The road to {~town} is closed until {~month} because of repairs.",
    '"I have lived here for {~few} years and never seen anything like it," said {~person}, a {~job}.',
    "A reporter from the {~town} Gazette was among the first to hear of it.",
    "Local radio read out letters from listeners, (most of them friendly|some of them angry|not all of them serious).",
    "{~person} of the chamber of commerce would not comment.",
    "The region is known for its (cheese|glass|wool|orchards|lakes), and little had changed there since {~past}.",
    "On {~day} the market was (quieter|busier) than usual.",
    "A bus carrying {~few} pensioners from {~town} stopped to take pictures.",
    "The hotel on the square is booked out until {~month}.",
    "Historian {~person} traced the story back to {~past}, when the first records begin.",
    "The post office will close early on {~day}.",
    '"You have to take things as they come," {~person} said with a shrug.',
    "A survey in {~month} found that {~percent} percent of people in the county were content.",
    "Rain is forecast for {~day}, with temperatures below the average for {~month}.",
    "The nearest hospital is in {~town}, {~few} miles away.",
    "The parish priest, {~person}, mentioned it in a sermon.",
    "Children drew pictures of it in class.",
    "The bakery on Bridge Street sold out before noon.",
    "Some {~thousands} people follow the town's page on the internet.",
    "A spokesman for the county said that the matter was being (watched|looked at) closely.",
    "Old photographs from {~past} show the same place with cows and a single lamp.",
    '"My grandmother would have laughed," said {~person}, who came from {~town} for the day.',
    "It was the second piece of news from the area this (week|month|year).",
    "The price of (bread|milk|petrol|firewood) there has gone up by {~percent} percent since {~past}.",
    "A choir from {~town} is planning a song about it.",
    "The police had nothing to report, apart from {~small} lost wallets.",
    "The bell of the church, cast in {~past}, rang at {~clock}.",
    "{~person}, a {~job} from {~town}, wrote a long letter to the editor.",
    "The river is (low|high) for {~month}, and the ferry runs only on {~day}.",
    "Tourists asked for directions all afternoon.",
    "At the inn, {~person} poured coffee and collected opinions.",
    "There was a similar story in {~town} in {~past}, but few remember it.",
    "A television crew stayed for {~small} hours and left before dark.",
    "The archive in {~town} keeps {~num} pages on the subject.",
    "Shops in the center reported {~percent} percent more customers than on a usual {~day}.",
    "By {~clock} the streets were empty again.",
    "The museum of local history has asked for a souvenir.",
    "An old saying in the valley holds that good news travels on foot.",
    '"Ask me again in {~month}," said {~person} and closed the door.',
    "For now, life goes on as usual.",
)
