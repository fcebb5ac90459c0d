"""Sentence pairs that differ in one word, which decides what "it" means: material for coreference.py.

    The animal didn't cross the street because it was too tired.      it = the animal
    The animal didn't cross the street because it was too wide.       it = the street

Such pairs are called Winograd schemas (Levesque et al. 2012). A head that always prefers the first noun, the last one,
or living things, is right about one sentence of each pair by construction, so only both together count.

    python phase3_visualization/pretrained/minimal_pairs.py
"""

from dataclasses import dataclass

from shared import cli


@dataclass(frozen=True)
class Pair:
    """A sentence with a gap, its two nouns, and for each noun the word in the gap that makes "it" mean it."""

    frame: str
    nouns: tuple[str, str]
    words: tuple[str, str]

    def sentence(self, member: int) -> str:
        """Member 0 is about the first noun, member 1 about the second."""
        return self.frame.replace("_", self.words[member])


def pair(frame: str, nouns: str, words: str) -> Pair:
    """pair("The cat ate the fish because it was _", "cat fish", "hungry tasty")."""
    (first, second), (for_first, for_second) = nouns.split(), words.split()
    return Pair(frame, (first, second), (for_first, for_second))


FAMOUS = pair("The animal didn't cross the street because it was too _", "animal street", "tired wide")
PAIRS = (
    FAMOUS,
    pair("The trophy did not fit into the suitcase because it was too _", "trophy suitcase", "big small"),
    pair("The ball broke the table because it was so _", "ball table", "heavy fragile"),
    pair("The truck could not pass under the bridge because it was too _", "truck bridge", "tall low"),
    pair("The snake swallowed the mouse because it was so _", "snake mouse", "hungry small"),
    pair("The cat ate the fish because it was _", "cat fish", "hungry tasty"),
    pair("The horse ate the hay because it was _", "horse hay", "hungry fresh"),
    pair("The plane could not land on the runway because it was too _", "plane runway", "heavy short"),
    pair("The ship could not enter the harbor because it was too _", "ship harbor", "large shallow"),
    pair("The car could not climb the hill because it was too _", "car hill", "old steep"),
    pair("The boat could not cross the lake because it was _", "boat lake", "leaking frozen"),
    pair("The hammer smashed the vase because it was so _", "hammer vase", "heavy delicate"),
    pair("The rock broke the window because it was so _", "rock window", "hard thin"),
    pair("The sponge absorbed the milk because it was _", "sponge milk", "dry spilled"),
    pair("The bird could not crack the nut because it was too _", "bird nut", "weak hard"),
    pair("The bear could not fit through the door because it was too _", "bear door", "fat narrow"),
    pair("The sofa did not fit through the hallway because it was too _", "sofa hallway", "wide narrow"),
    pair("The book did not fit on the shelf because it was too _", "book shelf", "thick crowded"),
    pair("The knife did not cut the bread because it was too _", "knife bread", "blunt stale"),
    pair("The rope could not hold the piano because it was too _", "rope piano", "thin heavy"),
    pair("The shelf collapsed under the statue because it was too _", "shelf statue", "weak heavy"),
    pair("The ice broke under the truck because it was too _", "ice truck", "thin heavy"),
    pair("The sun melted the butter because it was so _", "sun butter", "hot soft"),
    pair("The lamp did not light the cave because it was too _", "lamp cave", "dim deep"),
    pair("The lion could not catch the rabbit because it was too _", "lion rabbit", "slow fast"),
    pair("The fox could not reach the nest because it was too _", "fox nest", "short high"),
    pair("The goat could not jump over the fence because it was too _", "goat fence", "weak high"),
    pair("The camel did not cross the desert because it was too _", "camel desert", "thirsty hot"),
    pair("The spider trapped the fly because it was so _", "spider fly", "clever careless"),
    pair("The tractor got stuck in the field because it was so _", "tractor field", "heavy muddy"),
    pair("The bus slid off the road because it was _", "bus road", "speeding icy"),
    pair("The painting did not fit in the frame because it was too _", "painting frame", "big small"),
    pair("The letter did not fit in the envelope because it was too _", "letter envelope", "large small"),
    pair("The cow drank from the river because it was _", "cow river", "thirsty clean"),
    pair("The dog slept on the sofa because it was _", "dog sofa", "sleepy soft"),
    pair("The bee flew to the flower because it was _", "bee flower", "hungry fragrant"),
    pair("The mouse hid behind the box because it was _", "mouse box", "scared large"),
    pair("The elephant crushed the fence because it was so _", "elephant fence", "angry flimsy"),
    pair("The kitten did not drink the soup because it was too _", "kitten soup", "shy salty"),
    pair("The robot could not lift the crate because it was too _", "robot crate", "weak heavy"),
)


def sentences() -> list[str]:
    """All of them, the members of a pair side by side."""
    return [pair.sentence(member) for pair in PAIRS for member in (0, 1)]


def main(argv: list[str] | None = None) -> None:
    cli.parse(cli.parser(__doc__), argv)
    print(f"{len(PAIRS)} pairs:")
    for item in PAIRS:
        print(f"   {item.frame}: {', '.join(f'{w} ({n})' for n, w in zip(item.nouns, item.words, strict=True))}")


if __name__ == "__main__":
    cli.run(main)
