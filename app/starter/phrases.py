"""The words of the procedural world: every table that captions and the tokenizer's vocabulary are built from."""

from __future__ import annotations

Weighted = tuple[str, ...]
"""Choices of equal chance; a repeated one is likelier."""

COLOR_WORDS: dict[str, Weighted] = {
    "red": ("red",) * 5 + ("crimson", "scarlet", "ruby"),
    "orange": ("orange",) * 4 + ("tangerine",),
    "yellow": ("yellow",) * 5 + ("golden", "gold", "lemon"),
    "green": ("green",) * 5 + ("emerald", "lime"),
    "cyan": ("cyan", "turquoise", "turquoise", "teal", "aqua"),
    "blue": ("blue",) * 4 + ("azure", "navy"),
    "purple": ("purple",) * 5 + ("violet", "lilac"),
    "pink": ("pink",) * 4 + ("magenta", "rose"),
    "white": ("white",) * 4 + ("ivory",),
    "black": ("black",) * 4 + ("ebony", "dark"),
}
SHAPE_WORDS: dict[str, Weighted] = {
    "ball": ("ball",) * 5 + ("sphere", "beach ball", "orb"),
    "box": ("box",) * 5 + ("cube", "gift", "present", "square", "parcel", "package"),
    "star": ("star",) * 5,
    "heart": ("heart",) * 4 + ("love heart",),
    "fish": ("fish",) * 5 + ("goldfish",),
    "car": ("car",) * 5 + ("automobile", "vehicle", "auto"),
    "boat": ("boat",) * 4 + ("ship", "sailboat", "sailing boat", "yacht"),
    "rocket": ("rocket",) * 5 + ("spaceship", "space rocket", "rocket ship", "spacecraft"),
    "balloon": ("balloon",) * 4 + ("air balloon",),
    "bird": ("bird",) * 5 + ("birdie", "chick", "sparrow"),
    "tree": ("tree",) * 5,
    "house": ("house",) * 5 + ("home", "cottage", "building", "cabin", "hut"),
}
SAME_IN_PLURAL = ("fish", "goldfish")
SIZE_WORDS: dict[str, Weighted] = {
    "small": ("small", "small", "little", "tiny", "mini"),
    "big": ("big", "big", "large", "huge", "giant"),
}
OWN_VERB = {
    "ball": "rolls",
    "fish": "swims",
    "car": "drives",
    "boat": "sails",
    "rocket": "flies",
    "balloon": "floats",
    "bird": "flies",
    "star": "flies",
    "heart": "floats",
}
"""How an object moves by nature; the others just move."""

VERB_FORMS: dict[str, tuple[str, str]] = {
    "rolls": ("rolling", "roll"),
    "swims": ("swimming", "swim"),
    "drives": ("driving", "drive"),
    "sails": ("sailing", "sail"),
    "flies": ("flying", "fly"),
    "floats": ("floating", "float"),
    "moves": ("moving", "move"),
    "goes": ("going", "go"),
    "travels": ("traveling", "travel"),
    "slides": ("sliding", "slide"),
    "bounces": ("bouncing", "bounce"),
    "jumps": ("jumping", "jump"),
    "hops": ("hopping", "hop"),
    "spins": ("spinning", "spin"),
    "rotates": ("rotating", "rotate"),
    "turns": ("turning", "turn"),
    "grows": ("growing", "grow"),
    "shrinks": ("shrinking", "shrink"),
    "stays": ("staying", "stay"),
    "circles": ("circling", "circle"),
    "rises": ("rising", "rise"),
    "falls": ("falling", "fall"),
    "drops": ("dropping", "drop"),
    "climbs": ("climbing", "climb"),
    "stands": ("standing", "stand"),
    "sits": ("sitting", "sit"),
    "twirls": ("twirling", "twirl"),
    "leaps": ("leaping", "leap"),
    "soars": ("soaring", "soar"),
    "sinks": ("sinking", "sink"),
    "heads": ("heading", "head"),
    "expands": ("expanding", "expand"),
    "gets": ("getting", "get"),
    "becomes": ("becoming", "become"),
    "rests": ("resting", "rest"),
    "does": ("", "do"),
}
"""Third person -> (-ing form, plural); "does" (not move) has no -ing form here."""

MOTION_PHRASES: dict[str, Weighted] = {
    "left": (
        "{go} left",
        "{go} to the left",
        "{go} to the left",
        "{go} towards the left",
        "{go} from right to left",
        "{go} leftwards",
    ),
    "right": (
        "{go} right",
        "{go} to the right",
        "{go} to the right",
        "{go} towards the right",
        "{go} from left to right",
        "{go} rightwards",
    ),
    "up": ("{go} up", "{go} up", "{go} upwards", "rises", "rises up", "climbs up", "soars up"),
    "down": ("{go} down", "{go} down", "{go} downwards", "falls", "falls down", "drops down", "sinks"),
    "bounce": ("bounces", "bounces", "bounces up and down", "jumps", "jumps up and down", "hops", "leaps"),
    "spin": ("spins", "spins", "spins around", "rotates", "turns around", "spins in place", "twirls"),
    "circle": (
        "circles around",
        "moves in a circle",
        "goes around in a circle",
        "circles",
        "{go} in circles",
        "goes round in circles",
    ),
    "grow": ("grows", "grows", "grows bigger", "gets bigger", "gets larger", "becomes bigger", "expands"),
    "shrink": ("shrinks", "shrinks", "gets smaller", "becomes smaller", "shrinks away"),
    "still": (
        "stays still",
        "stays still",
        "stands still",
        "does not move",
        "sits still",
        "rests",
        "stays in place",
    ),
}
GO: Weighted = ("{own}",) * 10 + ("moves",) * 34 + ("goes",) * 10 + ("travels",) * 3 + ("slides",) * 3 + ("heads",) * 2

BACKGROUND_PHRASES: dict[str, Weighted] = {
    "meadow": (
        "over green grass",
        "in a meadow",
        "in a green meadow",
        "on a sunny day",
        "under a blue sky",
        "in a green field",
        "outdoors on the grass",
        "in a park",
        "on the grass",
        "in a sunny meadow",
        "in a garden",
        "in nature",
    ),
    "sunset": (
        "at sunset",
        "over the sea at sunset",
        "at sunset over the sea",
        "by the ocean at sunset",
        "at dusk over the water",
        "on the sea",
        "on the beach at sunset",
        "over the ocean",
        "in front of a sunset",
        "in the evening by the sea",
    ),
    "city": (
        "in a city at night",
        "at night in the city",
        "in front of a night city skyline",
        "over a night city",
        "in the night city",
        "under the stars in a city",
        "in front of city lights",
        "in town at night",
        "downtown at night",
    ),
    "desert": (
        "in the desert",
        "over desert dunes",
        "in a sandy desert",
        "on the sand",
        "over sand dunes",
        "in the dunes",
        "in a hot desert",
    ),
    "snow": (
        "in the snow",
        "over snowy hills",
        "in the snowy mountains",
        "in winter",
        "on a snowy hill",
        "in a winter landscape",
        "on the snow",
        "in a snowy landscape",
    ),
    "studio": (
        "on a plain background",
        "in a studio",
        "in front of a plain background",
        "on a simple background",
        "on a plain {tone} background",
        "on a {tone} background",
        "in a {tone} studio",
        "in front of a {tone} wall",
    ),
    "space": (
        "in space",
        "in outer space",
        "among the stars in space",
        "in the galaxy",
        "near a planet in space",
        "in deep space",
    ),
    "underwater": (
        "underwater",
        "under water",
        "under the sea",
        "in the deep sea",
        "at the bottom of the sea",
        "in the ocean depths",
        "in an aquarium",
    ),
}
BACKGROUND_LABELS: dict[str, Weighted] = {
    "meadow": ("green meadow", "sunny day", "grass field", "blue sky over grass"),
    "sunset": ("sunset", "sea at sunset", "ocean sunset"),
    "city": ("night city", "city skyline at night", "city at night"),
    "desert": ("desert", "desert dunes", "sand dunes"),
    "snow": ("snowy hills", "snow", "winter", "snowy landscape"),
    "studio": ("plain background", "studio", "plain {tone} background", "{tone} background"),
    "space": ("outer space", "space", "stars and planets"),
    "underwater": ("underwater", "under the sea", "underwater scene"),
}
CAMERA_PHRASES: dict[str, Weighted] = {
    "left": (
        "camera pans left",
        "the camera pans left",
        "the camera moves left",
        "pan left",
        "panning left",
        "camera pan to the left",
        "the camera slowly pans to the left",
    ),
    "right": (
        "camera pans right",
        "the camera pans right",
        "the camera moves right",
        "pan right",
        "panning right",
        "camera pan to the right",
        "the camera slowly pans to the right",
    ),
    "zoom": (
        "camera zooms in",
        "the camera zooms in",
        "zoom in",
        "zooming in",
        "slow zoom in",
        "the camera moves closer",
        "the camera slowly zooms in",
    ),
    "still": ("static camera", "still camera", "fixed camera", "the camera is still"),
}
OPENINGS: Weighted = (
    "a video of",
    "an animation of",
    "a cartoon of",
    "animation of",
    "video of",
    "a clip of",
    "show me",
    "make",
    "please show",
    "a cute cartoon of",
    "a short video showing",
    "cartoon style",
    "there is",
    "we see",
    "a movie of",
    "i want",
)
ADJECTIVES: Weighted = (
    "cute",
    "shiny",
    "pretty",
    "nice",
    "beautiful",
    "colorful",
    "lovely",
    "funny",
    "bright",
    "old",
    "new",
    "happy",
)
ADVERBS: Weighted = ("slowly", "quickly", "gently", "happily", "fast", "smoothly", "slow")
COLOR_AFTER_NOUN: Weighted = ("that is {color}", "in {color}", "colored {color}")
SIDES: Weighted = (
    "{left} on the left and {right} on the right",
    "{left} to the left of {right}",
    "{right} to the right of {left}",
    "{left} left and {right} right",
    "{right} on the right and {left} on the left",
)
PLACES: dict[str, Weighted] = {
    "left": ("on the left", "on the left", "at the left", "left"),
    "right": ("on the right", "on the right", "at the right", "right"),
}
PAIRS: Weighted = (
    "{first} and {second}",
    "{first} and {second}",
    "{first} next to {second}",
    "{first} with {second}",
    "{first} beside {second}",
)
SMALL_WORDS: Weighted = (
    "a",
    "an",
    "the",
    "one",
    "is",
    "are",
    "both",
    "it",
    "its",
    "of",
    "and",
    "with",
    "while",
    "some",
)


def plural(noun: str) -> str:
    """The plural of a noun of SHAPE_WORDS."""
    if noun.split()[-1] in SAME_IN_PLURAL:
        return noun
    return noun + ("es" if noun.endswith("x") else "s")
