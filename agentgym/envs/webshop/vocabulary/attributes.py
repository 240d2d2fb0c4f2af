"""What a product can be said to be or have: the attributes instructions ask for.

Each attribute is kept once, with every way it is written: its name (what the reward compares and what
titles print), how a shopper says it, a bullet in shop language, and paraphrases that avoid its name.
No text here may contain the name of another attribute: a product would then be credited with it,
and a near-miss sibling would stop being a miss. A test reads every line for that.
"""

# ruff: noqa: E501  # one record or sentence a line reads better than a wrapped one

from typing import Literal, NamedTuple

Form = Literal["is", "with", "for"]


class Attribute(NamedTuple):
    """One attribute and its wordings."""

    name: str
    """Lower case, what `instruction_attributes` holds and titles print."""
    form: Form
    """How it joins a noun: `is` (gluten free bread), `with` (shoes with a rubber sole), `for` (cream for dry skin)."""
    said: str
    """A shopper's words for it, after "that is", "with" or "for"."""
    bullet: str
    """A sentence of shop language."""
    paraphrases: tuple[str, ...]
    """Relative clauses that mean the same without the name: "that won't slip"."""


# name | form | said | bullet | paraphrases, separated by ";"
_TABLE = """
cruelty free | is | cruelty free | Never tested on animals, at any stage and in any lab. | that was never tested on animals;made without animal testing
paraben free | is | paraben free | The formula leaves parabens out, from the first batch to the last. | made without any parabens;that has no parabens in it
sulfate free | is | sulfate free | Cleans without sulfates, so it lathers gently. | made without sulfates;that leaves out the sulfates
alcohol free | is | alcohol free | No drying alcohol of any kind goes into the bottle. | that doesn't contain alcohol;made without alcohol
oil free | is | oil free | Sinks in within a minute and leaves no greasy film. | that won't leave my face greasy;that isn't greasy
fragrance free | is | fragrance free | No perfume has been added, for noses that would rather not notice. | with no perfume added;that doesn't smell of anything
long lasting | is | long lasting | Made to hold from the first coffee to the last train home. | that holds up for a long time;that keeps going and going
clinically proven | is | clinically proven | Results were measured in a twelve week trial with two hundred volunteers. | backed by clinical trials;that has been shown to work in trials
travel size | is | travel size | Fits the clear bag at the airport and the side pocket of a carry-on. | small enough for my carry-on;that i can take on a plane
easy apply | is | easy to apply | Goes on evenly in a couple of strokes, even without a mirror. | that goes on without any fuss;that is simple to put on
sensitive skin | for | sensitive skin | Mild enough for people whose face turns red at the slightest thing. | that won't irritate my skin;gentle enough for skin that reacts to everything
dry skin | for | dry skin | Holds moisture in through a cold, windy winter. | for skin that is always flaky;that helps when my skin feels parched
damaged hair | for | damaged hair | Helps strands that have been bleached or heat styled too often. | to repair my bleached hair;that rescues overprocessed hair
curly hair | for | curly hair | Defines coils and keeps frizz down. | that works on my curls;good for curls
fine lines | for | fine lines | Softens the look of creases around the eyes. | that smooths out small wrinkles;to fight early wrinkles
dark circles | for | dark circles | Brightens the tired look under the eyes. | that hides how tired my eyes look;to brighten under my eyes
dead skin | for | dead skin | Polishes away dull cells and leaves a smooth finish. | that exfoliates well;to exfoliate with
hyaluronic acid | with | hyaluronic acid | Holds many times its weight in water for a plumper look. | containing hyaluronic;that has hyaluronic in the formula
tea tree | with | tea tree | Steam distilled leaf oil gives a fresh, clean feel. | containing tea-tree extract;made from tea-tree leaves
coconut oil | with | coconut oil | Cold pressed and left unrefined for a soft finish. | made from pressed coconuts;containing coconut extract
argan oil | with | argan oil | A few drops from small cooperatives add shine. | containing argan extract;made with pressed argan kernels
vitamin c | with | vitamin c | A stable form that brightens day after day. | containing ascorbic acid;that has vitamins for brightening
natural ingredients | with | natural ingredients | Everything on the label can be found in a garden or a kitchen. | made only from plants;where everything in it comes from nature
wireless bluetooth | with | wireless bluetooth | Pairs in seconds and remembers the last eight devices. | that pairs with my phone without a cable;i can pair with my phone
noise cancelling | is | noise cancelling | Hushes engines, fans and open-plan offices. | that blocks out the sound around me;that shuts out background sound
hands free | is | hands free | Answer a call or skip a track without touching anything. | i can use without touching it;that i can control by voice
fast charging | is | fast charging | Half full in eighteen minutes, topped up within the hour. | that charges quickly;that fills up in under an hour
water resistant | is | water resistant | Shrugs off rain, sweat and a spilled glass. | that survives rain and splashes;i can use in the rain
high speed | is | high speed | Moves a two hour film in less than half a minute. | that is really quick;that transfers files quickly
plug play | is | plug and play | No driver, no app, no account: connect it and it works. | that works as soon as it is connected;that needs no drivers
high definition | is | high definition | Crisp edges and text you can read from the sofa. | with a really sharp picture;that looks crisp
ultra hd | with | ultra hd | Four times the detail of an ordinary panel. | with 4k detail;that shows 4k
stereo sound | with | stereo sound | Two drivers, tuned as a pair, fill a room evenly. | with left and right speakers;that sounds full in both ears
easy install | is | easy to install | Everything needed is in the box, and one screwdriver does it. | i can set up by myself;that goes up without a technician
light weight | is | lightweight | You will forget that you are carrying it. | that doesn't weigh much;that is not heavy at all
heavy duty | is | heavy duty | Built for rough hands, bad roads and long winters. | that can take a beating;that is built really tough
gold plated | is | gold plated | The contacts resist corrosion for a clean signal. | with contacts that don't corrode;with corrosion proof contacts
aluminum alloy | with | aluminum alloy | A solid metal shell keeps it cool and stiff. | made of metal rather than plastic;with a metal body
tempered glass | with | tempered glass | Hardened to 9H, so keys and coins leave no mark. | with a scratch proof cover;that keys won't scratch
carrying case | with | a carrying case | A zipped pouch is in the box. | that comes with something to carry it in;with a pouch included
batteries included | is | with batteries included | Cells for the first months come in the box. | that comes with its cells;where i don't have to get cells separately
optical zoom | with | optical zoom | Brings the far end of the field close without losing detail. | that can get closer without losing detail;with a real zoom lens
usb port | with | a usb port | Charge a phone from the side while it runs. | i can charge my phone from;that my phone can charge from
machine wash | is | machine washable | Cold cycle, tumble low, and it comes out the same. | i can throw in the washer;that can go in the laundry
hand wash | is | hand washable | A basin, some soap and ten minutes in the shade. | i can clean gently in the sink;that should be cleaned in the sink
slim fit | is | slim fit | Cut close through the body without pinching. | that is cut close to the body;that isn't baggy
relaxed fit | is | relaxed fit | Roomy where it counts, tidy where it shows. | that is roomy and loose;that isn't tight
long sleeve | with | long sleeves | Covers the arms down to the wrist, with a tidy cuff. | that covers my arms;that goes down to my wrists
short sleeve | with | short sleeves | Ends well above the elbow for warm days. | that leaves my forearms bare;that ends above the elbow
elastic waist | with | an elastic waist | Stretches after lunch and never digs in. | with a waistband that stretches;that stretches around my middle
drawstring closure | with | a drawstring closure | A flat cord ties at the front. | that ties with a cord;with a cord to tie it
high waist | is | high waisted | Sits above the hips and stays there. | that sits above my hips;that comes up over my hips
rubber sole | with | a rubber sole | Grips wet tiles and gravel alike. | with soles that grip;with good grip underneath
memory foam | with | memory foam | The cushioning moulds to you within a day. | with cushioning that moulds to my feet;that moulds to my shape
arch support | with | arch support | Lifts the middle of the foot on long shifts. | that holds up the middle of my foot;good for my flat feet
non slip | is | non slip | Stays put on polished floors. | that won't slide around;that stays put
steel toe | with | a steel toe | A hidden cap protects from falling boxes. | with a protective metal cap;that protects my toes at work
faux leather | with | faux leather | Looks like hide, wipes down like plastic, and no cow was involved. | that looks like leather but isn't;made of imitation leather
quick drying | is | quick drying | From the pool to the bus in twenty minutes. | that dries in no time;that won't stay wet
tummy control | with | tummy control | A double panel smooths the front. | that flattens my belly;that smooths my belly
moisture wicking | is | moisture wicking | Pulls sweat off the body on the longest run. | that keeps sweat off me;that keeps me dry when i sweat
easy clean | is | easy to clean | A damp cloth takes care of jam, soil and paw prints. | that wipes down without trouble;that i can just wipe down
easy assemble | is | easy to assemble | Ten bolts, one key, twenty minutes. | i can put together on my own;that goes together quickly
space saving | is | space saving | Folds flat and slides behind a door. | that fits in a tiny apartment;that doesn't take up much room
solid wood | with | solid wood | Planks, not veneer, with the grain left to show. | made of real timber;made from real planks
stainless steel | with | stainless steel | Polished metal that does not rust or hold smells. | made of metal that won't rust;that is rust proof
memory gel | with | memory gel | A cooling layer shapes itself to neck and shoulders. | with a cooling layer inside;that stays cool at night
high density | is | high density | Packed close, so it keeps its shape for years. | that keeps its shape for years;that won't go flat
storage space | with | storage space | Shelves and a deep compartment swallow the clutter. | i can keep things inside of;that holds all my clutter
living room | for | the living room | Looks at home beside a sofa. | to go beside my sofa;that would look nice by the couch
dining room | for | the dining room | Looks right around a long table with friends. | to use where we eat;for the place where we have dinner
super soft | is | super soft | Brushed on both sides until it feels like a cloud. | that feels like a cloud;that is nice to touch
eco friendly | is | eco friendly | Made with recycled stock and packed without plastic. | that is good for the planet;that is kind to the environment
fade resistant | is | fade resistant | Keeps its colour after summers of sun. | that keeps its color in the sun;that the sun won't bleach
double sided | is | double sided | A second look is waiting on the back. | i can flip over;that looks good on the back too
remote control | with | a remote control | Change every setting from across the room. | i can adjust from across the room;that i can change from my bed
gluten free | is | gluten free | No wheat, barley or rye comes near the line. | safe for someone with celiac;that has no wheat in it
sugar free | is | sugar free | Sweet on the tongue, with zero grams on the label. | made without any sugar;that has zero grams of sugar
dairy free | is | dairy free | Creamy without a drop of milk. | that has no milk in it;made without milk
nut free | is | nut free | Packed in a room where no peanut has ever been. | safe for a peanut allergy;that is okay for kids with a peanut allergy
soy free | is | soy free | Not a bean of it, not even in the seasoning. | made without soybeans;with no soybeans in it
low carb | is | low carb | Four net grams to a serving. | that has few carbs;that fits my carb limit
keto friendly | is | keto friendly | Fits the macros, even on strict weeks. | that suits a ketogenic diet;i can eat on a ketogenic diet
plant based | is | plant based | Grown in a field from the first ingredient to the last. | made from plants;with nothing from animals in it
high protein | is | high protein | Twenty grams to keep you going until dinner. | that has lots of protein;with plenty of protein
low sodium | is | low sodium | Seasoned with herbs rather than a salt shaker. | that isn't too salty;that doesn't have much salt
non gmo | is | non gmo | Grown from old seed varieties, checked by a third party. | that isn't genetically modified;without genetically modified crops
certified organic | is | certified organic | Farms are inspected every year, without notice. | grown on organic farms;grown without pesticides
artificial colors | is | free of artificial colors | What you see comes from beets, turmeric and spinach. | without dyes;that has no dyes in it
ready eat | is | ready to eat | Open, pour, done: nothing to cook and nothing to wash. | that needs no cooking;i can have straight from the bag
individually wrapped | is | individually wrapped | Each piece has its own pouch for lunch boxes. | where every piece has its own pouch;packed one by one
resealable bag | with | a resealable bag | A zip keeps what is left fresh. | that i can zip shut again;that closes again after opening
gift giving | for | gift giving | Comes in a box that needs no paper. | to give as a present;that makes a nice present
high fiber | is | high fiber | Nine grams of roughage to a serving. | that has plenty of roughage;with lots of roughage
"""


def _parse(table: str) -> dict[str, Attribute]:
    found = {}
    for line in table.strip().splitlines():
        name, form, said, bullet, paraphrases = (part.strip() for part in line.split("|"))
        assert form in ("is", "with", "for")
        # mypy doesn't narrow a str to the literals just asserted.
        found[name] = Attribute(name, form, said, bullet, tuple(paraphrases.split(";")))  # type: ignore[arg-type]
    return found


ATTRIBUTES: dict[str, Attribute] = _parse(_TABLE)
"""Every attribute by name."""
