"""Words that stand for several classes: ImageNet's groups, the ends of labels, and words that are refused."""

from __future__ import annotations

import pytest

from camtool.errors import TargetError
from camtool.models.sources.torchvision import read_imagenet_labels
from camtool.targets.classes_by_name import find_classes, find_label, read_imagenet_groups

IMAGENET = read_imagenet_labels()


def name_all(word: str) -> set[str]:
    return {IMAGENET[index] for index in find_classes(word, IMAGENET)}


def test_dogs_are_the_classes_151_to_268() -> None:
    assert find_classes("dog", IMAGENET) == tuple(range(151, 269))
    assert (IMAGENET[151], IMAGENET[268]) == ("Chihuahua", "Mexican hairless")
    assert {"Siberian husky", "golden retriever", "Cardigan", "boxer", "Newfoundland"} <= name_all("dog")
    # The first two are wild dogs, and the others are none at all.
    assert not {"dingo", "African hunting dog", "hotdog", "dogsled", "hyena", "prairie chicken"} & name_all("dog")


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("wolf", "timber wolf, white wolf, red wolf, coyote"),
        ("fox", "red fox, kit fox, Arctic fox, grey fox"),
        ("cat", "tabby, tiger cat, Persian cat, Siamese cat, Egyptian cat"),
        ("Big  Cat", "leopard, snow leopard, jaguar, lion, tiger, cheetah"),
        ("bear", "brown bear, American black bear, ice bear, sloth bear"),
        (
            "retriever",
            (
                "flat-coated retriever, curly-coated retriever, golden retriever, Labrador retriever, "
                "Chesapeake Bay retriever"
            ),
        ),
        (
            "spaniel",
            (
                "Japanese spaniel, Blenheim spaniel, papillon, Brittany spaniel, clumber, English springer, "
                "Welsh springer spaniel, cocker spaniel, Sussex spaniel, Irish water spaniel"
            ),
        ),
        ("lemur", "Madagascar cat, indri"),
        ("shark", "great white shark, tiger shark, hammerhead"),
        ("crab", "Dungeness crab, rock crab, fiddler crab, king crab"),
        ("frog", "bullfrog, tree frog, tailed frog"),
        ("turtle", "loggerhead, leatherback turtle, mud turtle, terrapin, box turtle"),
        ("spider", "black and gold garden spider, barn spider, garden spider, black widow, tarantula, wolf spider"),
        ("bus", "minibus, school bus, trolleybus"),
        ("airplane", "airliner, warplane"),
        ("bicycle", "bicycle-built-for-two, mountain bike"),
        ("fungus", "coral fungus, agaric, gyromitra, stinkhorn, earthstar, hen-of-the-woods, bolete"),
        (
            "fruit",
            ("Granny Smith, strawberry, orange, lemon, fig, pineapple, banana, jackfruit, custard apple, pomegranate"),
        ),
        ("bottle", "beer bottle, pill bottle, pop bottle, water bottle, water jug, whiskey jug, wine bottle"),
    ],
)
def test_groups_of_imagenet_hold_the_classes_by_these_names(word: str, names: str) -> None:
    assert name_all(word) == set(names.split(", "))


def test_the_table_is_consistent() -> None:
    groups = read_imagenet_groups()
    assert len(groups) > 80
    for word, members in groups.items():
        assert len(members) > 1, word
        assert list(members) == sorted({*members}), word
        assert set(members) <= set(range(1000)), word
    for part, whole in [
        ("dog", "canine"),
        ("wolf", "canine"),
        ("cat", "feline"),
        ("beetle", "insect"),
        ("ape", "primate"),
    ]:
        assert set(groups[part]) < set(groups[whole]) < set(groups["animal"])
    for one, other in [("dog", "wolf"), ("dog", "wild dog"), ("cat", "big cat"), ("monkey", "ape"), ("ship", "boat")]:
        assert not {*groups[one]} & {*groups[other]}


def test_no_group_has_the_name_of_a_class() -> None:
    """Or "orange" could be a fruit or fruits."""
    timm_data = pytest.importorskip("timm.data")
    described = timm_data.ImageNetInfo()
    synonyms = {name.strip() for i in range(1000) for name in described.index_to_description(i).casefold().split(",")}
    assert not {*read_imagenet_groups()} & (synonyms | {label.casefold() for label in IMAGENET})


def test_labels_of_other_sources_are_recognized() -> None:
    timm_data = pytest.importorskip("timm.data")
    described = timm_data.ImageNetInfo()
    labels = [described.index_to_description(index) for index in range(1000)]
    assert labels[282] == "tiger cat"
    assert find_classes("cat", labels) == (281, 282, 283, 284, 285)
    assert find_classes("cat", ["background", *labels]) == (282, 283, 284, 285, 286)


def test_another_order_is_not_imagenet() -> None:
    with pytest.raises(TargetError, match="'canine' is not among the 1000 labels"):
        find_classes("canine", IMAGENET[::-1])


def test_a_word_stands_for_the_labels_that_end_with_it() -> None:
    labels = ["tiger cat", "cat flap", "Persian Cat", "wildcat", "sea-cat", "dog, domestic cat", "concatenation"]
    assert find_classes("Cat", labels) == (0, 2, 4, 5)
    assert find_classes("flap", labels) == (1,)
    assert find_classes("persian  cat", labels) == (2,)


@pytest.mark.parametrize(
    ("word", "labels", "message"),
    [
        # A hot dog is no dog.
        ("dog", ["dog", "hot dog", "cat"], r"ambiguous between 'dog' \(0\), 'hot dog' \(1\); .* Group\(\[0, 1\]\)"),
        ("crane", ["crane, bird", "Crane, machine"], r"ambiguous between 'crane, bird' \(0\), 'Crane, machine' \(1\)"),
        ("lion", IMAGENET, r"ambiguous between 'sea lion' \(150\), 'lion' \(291\)"),
        ("dogs", IMAGENET, r"'dogs' is not among the 1000 labels\. Did you mean 'dog'\?"),
        ("wolfs", IMAGENET, r"Did you mean 'wolf'"),
        ("dogg", ["dog", "cat"], r"'dogg' is not among the 2 labels\. Did you mean 'dog'\?"),
        ("", ["dog", "cat"], r"'' is not among"),
        ("dog", None, r"'dog' is a name, but no labels are known"),
    ],
)  # fmt: skip
def test_an_unknown_or_ambiguous_word_is_refused(word: str, labels: list[str] | None, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        find_classes(word, labels)


def test_the_error_for_a_label_names_the_group() -> None:
    with pytest.raises(TargetError, match=r"Labels with 'dog': Maltese dog .* 'group:dog' is 118 classes together\.$"):
        find_label("dog", IMAGENET)
