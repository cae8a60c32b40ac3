"""Make the table of ImageNet's groups, ``camtool/targets/imagenet_groups.json``, from the hierarchy of WordNet 3.0.

    python tools/make_imagenet_groups.py /usr/share/wordnet/data.noun

The file is that of WordNet's database (https://wordnet.princeton.edu, in Debian the package ``wordnet-base``). The
classes of a group are those below its synset, or below one of several. timm lists the synsets of ImageNet's classes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

TABLE = Path(__file__).parents[1] / "camtool" / "targets" / "imagenet_groups.json"
SOURCE = "hyponyms in WordNet 3.0, Princeton University, https://wordnet.princeton.edu"

GROUPS = {
    "mammal": "01861778",
    "dog": "02084071",
    "toy dog": "02085374",
    "hunting dog": "02087122",
    "hound": "02087551",
    # WordNet has these with the toy dogs; their names say what they are.
    "terrier": "02092468 02087046",
    "spaniel": "02101108 02086346 02085782",
    "sporting dog": "02098550",
    "retriever": "02099029",
    "setter": "02100399",
    "schnauzer": "02096756",
    "working dog": "02103406",
    "shepherd dog": "02104523",
    "sled dog": "02109811",
    "spitz": "02111626",
    "corgi": "02112826",
    "poodle": "02113335",
    "canine": "02083346",
    "wolf": "02114100",
    "wild dog": "02115335",
    "fox": "02118333",
    "feline": "02120997",
    # The domestic cats: those below "true cat" are also the cougar and the lynx.
    "cat": "02121808",
    "big cat": "02127808",
    "bear": "02131653",
    "rodent": "02329401",
    "rabbit": "02323449",
    "ungulate": "02370806",
    "swine": "02395003",
    "antelope": "02419796",
    "marsupial": "01874434",
    "whale": "02062744",
    "elephant": "02503517",
    "primate": "02469914",
    "monkey": "02484322",
    "ape": "02470325",
    "lemur": "02496913",
    "bird": "01503061",
    "finch": "01529672",
    "grouse": "01795088",
    "parrot": "01816887",
    "bird of prey": "01604330",
    "duck": "01846331",
    "stork": "02002075",
    "heron": "02008041",
    "fish": "02512053",
    "shark": "01482330",
    "ray": "01495701",
    "reptile": "01661091",
    "turtle": "01662784",
    "lizard": "01674464",
    "snake": "01726692",
    "crocodilian": "01696633",
    "frog": "01639765",
    "salamander": "01629276",
    "insect": "02159955",
    "beetle": "02164464",
    "butterfly": "02274259",
    "spider": "01772222",
    "arachnid": "01769347",
    "crustacean": "01974773",
    "crab": "01976957",
    "lobster": "01982650",
    "mollusk": "01940736",
    "animal": "00015388",
    "vehicle": "04524313",
    "car": "02958343",
    "truck": "04490091",
    "van": "04520170",
    "bus": "02924116",
    "motorcycle": "03785016 03791053",
    "bicycle": "02834778",
    "locomotive": "03684823",
    "watercraft": "04530566",
    "ship": "04194289",
    "boat": "02858304",
    "aircraft": "02686568",
    "airplane": "03510583",
    "musical instrument": "03800933",
    "stringed instrument": "04338517",
    "wind instrument": "04586932",
    "percussion instrument": "03915437",
    "guitar": "03467517",
    "fruit": "07705931",
    "vegetable": "07707451",
    "fungus": "12992868",
    "flower": "11669921",
    "bottle": "02876657",
    "clothing": "03051540",
    "hat": "03497657",
    "coat": "03057021",
    "skirt": "04230808",
    "shoe": "04199027",
    "footwear": "03380867",
    "furniture": "03405725",
    "chair": "03001627",
    "personal computer": "03918480",
    "telephone": "04401088",
    "clock": "03046257",
    "ball": "02778669",
    "bridge": "02898711",
    "building": "02913152",
    "weapon": "04565375",
    "gun": "03467984",
}
"""Word → the synsets of WordNet 3.0 that it stands for, by their offsets in ``data.noun``."""


def main() -> None:
    """Write the table: word → ranges of classes."""
    from timm.data import ImageNetInfo

    parents = read_hypernyms(Path(sys.argv[1]))
    above = [list_hypernyms(name[1:], parents) for name in ImageNetInfo().label_names()]
    groups = {
        word: format_ranges([index for index, own in enumerate(above) if own & {*synsets.split()}])
        for word, synsets in GROUPS.items()
    }
    TABLE.write_text(json.dumps({"source": SOURCE, "groups": groups}, indent=1) + "\n", encoding="utf-8")


def read_hypernyms(file: Path) -> dict[str, list[str]]:
    """Return the synsets right above each noun synset."""
    parents = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):  # the license
            continue
        fields = line.partition("|")[0].split()
        first = 4 + 2 * int(fields[3], 16)  # behind the words: the number of pointers, then four fields for each
        pointers = [fields[first + 1 + 4 * number :][:2] for number in range(int(fields[first]))]
        parents[fields[0]] = [synset for kind, synset in pointers if kind in ("@", "@i")]
    return parents


def list_hypernyms(synset: str, parents: Mapping[str, Sequence[str]]) -> set[str]:
    """Return a synset and all above it."""
    return {synset}.union(*(list_hypernyms(parent, parents) for parent in parents[synset]))


def format_ranges(numbers: Sequence[int]) -> str:
    """Return increasing numbers as ranges: ``"0-4 7 9-10"``."""

    def split() -> Iterator[str]:
        start = 0
        for end in range(1, len(numbers) + 1):
            if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
                first, last = numbers[start], numbers[end - 1]
                yield f"{first}-{last}" if last > first else str(first)
                start = end

    return " ".join(split())


if __name__ == "__main__":
    main()
