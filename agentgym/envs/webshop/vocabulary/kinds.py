"""The kinds of product the full catalogue sells: twelve in each of the original's five categories."""

# ruff: noqa: E501  # one record or sentence a line reads better than a wrapped one

from typing import NamedTuple


class Kind(NamedTuple):
    """One kind of product."""

    category: str
    """beauty, electronics, fashion, garden or grocery."""
    nouns: tuple[str, ...]
    """Names for it, the usual one first. Shoppers use the first two; both are in every description."""
    determiner: str
    """What stands before the noun: `a` (article), `pair` (a pair of) or `some`."""
    query: str
    """The search that the shop files it under."""
    chain: str
    """Category chain, in the original's form."""
    low_cents: int
    """Cheapest price, in cents."""
    high_cents: int
    """Dearest price, in cents."""
    attributes: tuple[str, ...]
    """Names of the attributes it can have."""
    options: tuple[str, ...]
    """Keys of the option groups it can have, most usual first."""
    uses: tuple[str, ...]
    """Whom or what it is for, after "for"."""


_CHAINS = {
    "beauty": "Beauty & Personal Care",
    "electronics": "Electronics",
    "fashion": "Clothing, Shoes & Jewelry",
    "garden": "Home & Kitchen",
    "grocery": "Grocery & Gourmet Food",
}

# category | nouns | count | query | rest of the chain | dollars | attributes | options | uses
_TABLE = """
beauty | shampoo; hair cleanser | a | hair shampoo | Hair Care; Shampoo & Conditioner; Shampoos | 7-68 | sulfate free; paraben free; cruelty free; damaged hair; curly hair; tea tree; argan oil; coconut oil; travel size | scent; fluid; pack | Men and Women; Daily Washing; Color Treated Hair
beauty | hair mask; deep conditioner | a | hair treatments | Hair Care; Hair Treatments; Masks | 8-74 | damaged hair; curly hair; argan oil; coconut oil; sulfate free; paraben free; cruelty free; easy apply; natural ingredients | scent; fluid; pack | Weekly Care; Salon and Home; Men and Women
beauty | face moisturizer; day cream | a | face moisturizer | Skin Care; Face; Creams & Moisturizers | 9-92 | hyaluronic acid; dry skin; sensitive skin; fine lines; oil free; fragrance free; cruelty free; vitamin c; paraben free; clinically proven | fluid; scent; pack | Women and Men; Day and Night; All Ages
beauty | face serum; facial serum | a | facial serums | Skin Care; Face; Treatments & Masks; Serums | 10-98 | vitamin c; hyaluronic acid; fine lines; dark circles; sensitive skin; alcohol free; cruelty free; paraben free; clinically proven; travel size | fluid; pack | Daily Use; Evening Routines; Mature Faces
beauty | body scrub; body polish | a | body scrubs | Skin Care; Body; Scrubs & Body Treatments | 8-57 | dead skin; dry skin; sensitive skin; coconut oil; tea tree; cruelty free; paraben free; natural ingredients; travel size | scent; ounces; pack | Spa Days; Hands and Feet; Women and Men
beauty | lipstick; lip color | a | lipstick | Makeup; Lips; Lipstick | 5-52 | long lasting; cruelty free; paraben free; easy apply; fragrance free; argan oil; travel size; alcohol free | shade; pack | Evenings Out; Daily Wear; Parties
beauty | liquid foundation; face makeup | a | foundation makeup | Makeup; Face; Foundation | 8-66 | long lasting; oil free; sensitive skin; dry skin; cruelty free; fine lines; dark circles; easy apply; paraben free; fragrance free | shade; fluid; pack | Daily Wear; Photographs; Mature Faces
beauty | makeup brush set; cosmetic brush set | a | makeup brushes | Tools & Accessories; Makeup Brushes & Tools; Brush Sets | 7-88 | cruelty free; easy clean; travel size; eco friendly; super soft; easy apply; carrying case; high density | tech_color; pack | Beginners; Powder and Cream; Professionals
beauty | deodorant stick; antiperspirant | a | deodorant | Personal Care; Deodorants & Antiperspirants; Deodorant | 4-49 | long lasting; alcohol free; sensitive skin; natural ingredients; cruelty free; paraben free; coconut oil; travel size; clinically proven | scent; ounces; pack | Men; Women; Teens
beauty | electric toothbrush; power toothbrush | a | electric toothbrushes | Oral Care; Toothbrushes & Accessories; Powered Toothbrushes | 14-120 | fast charging; water resistant; travel size; long lasting; carrying case; easy clean; clinically proven; batteries included | tech_color; pack; tech_style | Adults; Kids; Travel
beauty | nail polish; nail lacquer | a | nail polish | Foot, Hand & Nail Care; Nail Art & Polish; Polish | 4-46 | long lasting; cruelty free; quick drying; easy apply; eco friendly; paraben free; alcohol free; plant based | shade; fluid; pack | Home Manicures; Salons; Gifts
beauty | body lotion; body butter | a | body lotions | Skin Care; Body; Moisturizers; Lotions | 6-58 | dry skin; sensitive skin; fragrance free; coconut oil; hyaluronic acid; natural ingredients; cruelty free; alcohol free; paraben free | scent; fluid; pack | Winter; The Whole Family; Hands and Elbows
electronics | bluetooth speaker; portable speaker | a | bluetooth speakers | Portable Audio & Video; Portable Speakers & Docks; Portable Bluetooth Speakers | 18-210 | stereo sound; water resistant; hands free; fast charging; long lasting; light weight; carrying case; usb port; heavy duty | tech_color; tech_style; pack | Pool Parties; Camping; Small Rooms
electronics | headphones; over ear headphones | pair | headphones | Headphones; Over-Ear Headphones | 19-320 | noise cancelling; wireless bluetooth; stereo sound; hands free; fast charging; light weight; carrying case; gold plated; long lasting | tech_color; tech_style; pack | Commuting; Studio Work; Calls
electronics | earbuds; in ear headphones | pair | earbuds | Headphones; Earbud Headphones | 12-190 | noise cancelling; wireless bluetooth; water resistant; fast charging; hands free; stereo sound; light weight; carrying case | tech_color; tech_style; pack | Running; The Gym; Small Ears
electronics | hdmi cable; video cable | a | hdmi cables | Accessories & Supplies; Audio & Video Accessories; Cables & Interconnects; HDMI Cables | 6-72 | gold plated; high speed; ultra hd; plug play; heavy duty; aluminum alloy; easy install; long lasting | length; tech_color; pack | Game Consoles; Projectors; Monitors
electronics | phone case; protective cover | a | phone cases | Cell Phones & Accessories; Cases, Holsters & Sleeves; Basic Cases | 7-61 | tempered glass; heavy duty; light weight; water resistant; easy install; non slip; eco friendly; faux leather | tech_color; tech_style; pack | Clumsy Hands; Work Sites; Students
electronics | tablet; touchscreen tablet | a | tablets | Computers & Accessories; Computers & Tablets; Tablets | 79-640 | high definition; ultra hd; fast charging; light weight; stereo sound; long lasting; usb port; aluminum alloy; tempered glass | storage; tech_color; tech_style | Reading; Kids; Drawing
electronics | security camera; surveillance camera | a | security cameras | Camera & Photo; Video Surveillance; Surveillance Cameras | 24-280 | high definition; ultra hd; easy install; water resistant; plug play; batteries included; optical zoom; heavy duty; usb port | tech_color; pack; storage | Front Doors; Garages; Baby Rooms
electronics | digital camera; compact camera | a | digital cameras | Camera & Photo; Digital Cameras; Point & Shoot Digital Cameras | 69-560 | optical zoom; high definition; ultra hd; water resistant; light weight; carrying case; batteries included; fast charging; easy install | tech_color; storage; tech_style | Beginners; Birdwatching; Holidays
electronics | wireless mouse; computer mouse | a | computer mouse | Computers & Accessories; Keyboards, Mice & Accessories; Mice | 9-104 | plug play; light weight; long lasting; batteries included; non slip; fast charging; high speed; eco friendly | tech_color; tech_style; pack | Office Work; Left Hands; Gaming
electronics | smart watch; fitness watch | a | smartwatches | Wearable Technology; Smartwatches | 29-340 | water resistant; fast charging; hands free; light weight; long lasting; tempered glass; aluminum alloy; high definition; stereo sound | tech_color; tech_style; storage | Runners; Swimmers; Everyday Wear
electronics | tv wall mount; television bracket | a | tv mounts | Television & Video; Accessories; TV Mounts, Stands & Turntables; TV Wall & Ceiling Mounts | 18-150 | heavy duty; easy install; space saving; aluminum alloy; easy assemble; light weight; eco friendly; long lasting | inches; tech_color; tech_style | Flat Screens; Corners; Brick Walls
electronics | power bank; portable charger | a | portable chargers | Cell Phones & Accessories; Accessories; Chargers & Power Adapters; Portable Power Banks | 14-118 | fast charging; light weight; usb port; water resistant; heavy duty; aluminum alloy; long lasting; carrying case; high speed | tech_color; pack; tech_style | Long Flights; Festivals; Hiking
fashion | hiking boots; trail boots | pair | women's hiking boots | Women; Shoes; Outdoor; Hiking & Trekking; Hiking Boots | 34-240 | water resistant; non slip; rubber sole; memory foam; arch support; steel toe; light weight; quick drying; faux leather | shoe_size; wear_color; width | Long Trails; Wet Weather; Winter Walks
fashion | running shoes; sneakers | pair | men's running shoes | Men; Shoes; Athletic; Running; Road Running | 28-190 | rubber sole; arch support; memory foam; non slip; light weight; quick drying; moisture wicking; machine wash | shoe_size; wear_color; width | Road Races; The Gym; Long Shifts
fashion | sandals; slide sandals | pair | women's sandals | Women; Shoes; Sandals; Slides | 16-120 | rubber sole; arch support; memory foam; non slip; faux leather; quick drying; light weight; easy clean | shoe_size; wear_color; width | The Beach; Summer Evenings; Wide Feet
fashion | t-shirt; crew neck tee | a | men's t-shirts | Men; Clothing; Shirts; T-Shirts | 9-68 | machine wash; short sleeve; long sleeve; slim fit; relaxed fit; moisture wicking; quick drying; super soft; eco friendly | wear_size; wear_color; fit | Weekends; Training; Layering
fashion | hoodie; pullover sweatshirt | a | fashion hoodies & sweatshirts | Men; Clothing; Fashion Hoodies & Sweatshirts | 19-115 | machine wash; long sleeve; drawstring closure; relaxed fit; slim fit; super soft; quick drying; moisture wicking | wear_size; wear_color; fit | Cold Mornings; Students; Lounging
fashion | leggings; yoga pants | pair | women's leggings | Women; Clothing; Leggings | 13-96 | high waist; tummy control; moisture wicking; machine wash; elastic waist; quick drying; super soft; light weight | wear_size; wear_color; pack | Yoga; Running; Everyday Comfort
fashion | jogger pants; sweatpants | pair | men's pants | Men; Clothing; Active; Active Pants | 17-108 | elastic waist; drawstring closure; slim fit; relaxed fit; machine wash; quick drying; moisture wicking; super soft | wear_size; wear_color; fit | Travel Days; Training; Home
fashion | summer dress; sundress | a | women's dresses | Women; Clothing; Dresses; Casual | 19-138 | short sleeve; long sleeve; elastic waist; high waist; machine wash; hand wash; light weight; relaxed fit; quick drying | wear_size; wear_color; pack | Weddings; Vacations; Garden Parties
fashion | swimsuit; bathing suit | a | women's swimsuits | Women; Clothing; Swimsuits & Cover Ups; One-Pieces | 18-122 | tummy control; quick drying; hand wash; high waist; light weight; fade resistant; eco friendly; slim fit | wear_size; wear_color; pack | Laps; Beach Days; Mothers
fashion | rain jacket; hooded raincoat | a | women's jackets | Women; Clothing; Coats, Jackets & Vests; Raincoats | 29-210 | water resistant; light weight; machine wash; drawstring closure; long sleeve; relaxed fit; quick drying; slim fit; eco friendly | wear_size; wear_color; pack | Commuting; Trails; Spring Showers
fashion | backpack; daypack | a | backpacks | Luggage & Travel Gear; Backpacks; Casual Daypacks | 22-160 | water resistant; light weight; usb port; faux leather; heavy duty; easy clean; storage space; eco friendly; machine wash | wear_color; tech_style; pack | School; Weekend Trips; Laptops
fashion | slippers; house shoes | pair | men's slippers | Men; Shoes; Slippers | 12-86 | memory foam; non slip; rubber sole; arch support; machine wash; super soft; light weight; faux leather | shoe_size; wear_color; width | Cold Floors; Grandfathers; Working from Home
garden | bookshelf; bookcase | a | bookcases | Furniture; Home Office Furniture; Bookcases | 42-330 | solid wood; easy assemble; storage space; living room; heavy duty; space saving; easy clean; eco friendly | home_color; inches; home_style | Small Apartments; Plants and Books; Corners
garden | coffee table; cocktail table | a | coffee tables | Furniture; Living Room Furniture; Tables; Coffee Tables | 58-420 | solid wood; storage space; living room; easy assemble; tempered glass; easy clean; space saving; stainless steel | home_color; inches; home_style | Apartments; Board Games; Movie Nights
garden | dining chair set; kitchen chair set | a | dining chairs | Furniture; Kitchen & Dining Room Furniture; Chairs | 64-460 | solid wood; dining room; easy assemble; faux leather; easy clean; high density; heavy duty; stainless steel; space saving | home_color; home_style; pack | Family Dinners; Cafes; Breakfast Corners
garden | throw blanket; fleece blanket | a | throw blankets | Bedding; Blankets & Throws; Throws | 14-98 | super soft; machine wash; living room; light weight; double sided; fade resistant; eco friendly; hand wash | home_color; bed_size; home_style | Sofas; Cold Evenings; Dogs and Cats
garden | bed pillow; sleeping pillow | a | bed pillows | Bedding; Bed Pillows & Positioners; Bed Pillows | 17-130 | memory foam; memory gel; high density; machine wash; super soft; easy clean; eco friendly; double sided | bed_size; pack; home_color | Side Sleepers; Neck Pain; Guests
garden | curtains; window drapes | some | window curtains | Window Treatments; Curtains & Drapes; Panels | 16-124 | living room; dining room; machine wash; easy install; fade resistant; super soft; eco friendly; double sided | home_color; inches; home_style | Bedrooms; Tall Windows; Night Workers
garden | area rug; floor carpet | a | area rugs | Rugs, Pads & Protectors; Area Rugs | 29-340 | non slip; machine wash; living room; dining room; super soft; easy clean; fade resistant; high density; eco friendly | home_color; home_style; bed_size | Hallways; Nurseries; Bedrooms
garden | table lamp; bedside lamp | a | table lamps | Lighting & Ceiling Fans; Lamps & Shades; Table Lamps | 18-160 | living room; usb port; easy install; solid wood; remote control; space saving; easy clean; eco friendly; stainless steel | home_color; home_style; pack | Nightstands; Reading; Desks
garden | kitchen knife set; chef knife set | a | kitchen knife sets | Kitchen & Dining; Cutlery & Knife Accessories; Knife Sets | 24-260 | stainless steel; easy clean; non slip; heavy duty; light weight; storage space; solid wood; gift giving | home_color; home_style; pack | New Cooks; Sushi; Family Kitchens
garden | plant pot; flower planter | a | plant pots | Patio, Lawn & Garden; Gardening & Lawn Care; Pots, Planters & Container Accessories; Pots | 11-104 | fade resistant; heavy duty; light weight; eco friendly; easy clean; living room; solid wood; space saving | home_color; inches; pack | Balconies; Herbs; Succulents
garden | tv stand; media console | a | tv stands | Furniture; Living Room Furniture; Television Stands & Entertainment Centers | 69-520 | storage space; solid wood; easy assemble; living room; tempered glass; space saving; easy clean; remote control; heavy duty | home_color; inches; home_style | Game Nights; Flat Screens; Corners
garden | storage ottoman; footstool | a | ottomans | Furniture; Accent Furniture; Ottomans | 27-210 | faux leather; storage space; high density; living room; easy assemble; space saving; easy clean; super soft; memory foam | home_color; inches; home_style | Toys; Bed Ends; Entryways
grocery | protein bars; nutrition bars | some | protein bars | Snack Foods; Bars; Nutrition Bars; High Protein Bars | 9-74 | high protein; gluten free; low carb; keto friendly; plant based; sugar free; soy free; non gmo; individually wrapped; dairy free | sweet_flavor; pack; ounces | Hikes; After Training; Office Drawers
grocery | granola; breakfast cereal | some | granola | Breakfast Foods; Cereals; Granola | 6-62 | gluten free; non gmo; certified organic; high fiber; nut free; sugar free; plant based; resealable bag; low sodium | sweet_flavor; ounces; pack | Yogurt; Busy Mornings; Kids
grocery | potato chips; crisps | some | potato chips | Snack Foods; Chips & Crisps; Potato | 5-58 | gluten free; non gmo; low sodium; nut free; artificial colors; resealable bag; dairy free; soy free; certified organic | salty_flavor; ounces; pack | Parties; Lunch Boxes; Movie Nights
grocery | popcorn; popped corn | some | popcorn | Snack Foods; Popcorn; Popped | 5-61 | gluten free; non gmo; ready eat; dairy free; artificial colors; low sodium; high fiber; resealable bag; individually wrapped | salty_flavor; ounces; pack | Movie Nights; Sharing; Desk Snacks
grocery | herbal tea; herbal infusion | some | herbal tea | Beverages; Tea; Herbal | 5-56 | certified organic; sugar free; non gmo; individually wrapped; gift giving; artificial colors; plant based; resealable bag | tea_flavor; pack; ounces | Quiet Evenings; Iced Pitchers; Sore Throats
grocery | ground coffee; roast coffee | some | ground coffee | Beverages; Coffee; Ground Coffee | 8-72 | certified organic; non gmo; sugar free; resealable bag; gift giving; artificial colors; keto friendly; low carb | sweet_flavor; ounces; pack | Drip Machines; French Press; Offices
grocery | trail mix; snack mix | a | trail mix | Snack Foods; Trail Mix | 7-64 | high protein; gluten free; low sodium; non gmo; resealable bag; ready eat; soy free; individually wrapped; certified organic | salty_flavor; ounces; pack | Hikes; Road Trips; School
grocery | gummy candy; chewy candy | some | gummy candy | Snack Foods; Candy & Chocolate; Gummies & Chewy Candy | 5-52 | sugar free; gluten free; nut free; artificial colors; plant based; individually wrapped; resealable bag; gift giving; dairy free | sweet_flavor; ounces; pack | Birthdays; Party Bags; Car Rides
grocery | cookies; biscuits | some | cookies | Snack Foods; Cookies | 6-60 | gluten free; sugar free; nut free; dairy free; keto friendly; individually wrapped; gift giving; non gmo; artificial colors | sweet_flavor; pack; ounces | Tea Time; Grandparents; Lunch Boxes
grocery | pasta sauce; marinara | a | pasta sauce | Sauces, Gravies & Marinades; Sauces; Pasta & Pizza Sauce | 5-54 | gluten free; low sodium; sugar free; certified organic; dairy free; low carb; non gmo; plant based; ready eat | salty_flavor; ounces; pack | Quick Dinners; Pizza; Big Families
grocery | beef jerky; dried meat | some | jerky & dried meats | Snack Foods; Jerky & Dried Meats; Jerky | 8-86 | high protein; gluten free; low carb; keto friendly; sugar free; low sodium; soy free; resealable bag; ready eat; individually wrapped | salty_flavor; ounces; pack | Camping; Long Drives; Hunters
grocery | drink mix; powdered drink | a | powdered drink mixes | Beverages; Powdered Drink Mixes & Flavorings; Soft Drink Mixes | 6-66 | sugar free; keto friendly; non gmo; artificial colors; individually wrapped; plant based; low carb; high protein; dairy free; gluten free | sweet_flavor; pack; ounces | Water Bottles; After Training; Kids
"""


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";"))


def _parse(table: str) -> tuple[Kind, ...]:
    kinds = []
    for line in table.strip().splitlines():
        category, nouns, determiner, query, chain, dollars, attributes, options, uses = (
            part.strip() for part in line.split("|")
        )
        low, high = dollars.split("-")
        kinds.append(
            Kind(
                category,
                _split(nouns),
                determiner,
                query,
                " › ".join((_CHAINS[category], *_split(chain))),
                100 * int(low),
                100 * int(high),
                _split(attributes),
                _split(options),
                _split(uses),
            )
        )
    return tuple(kinds)


KINDS: tuple[Kind, ...] = _parse(_TABLE)
"""Sixty kinds, twelve per category."""
