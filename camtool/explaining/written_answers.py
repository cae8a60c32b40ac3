"""Maps of the words that a vision-language model says about an image: ``camtool.tokens``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from camtool.arguments.checks import check_choice
from camtool.arguments.explain_arguments import get_module
from camtool.arguments.message_parts import format_percent
from camtool.errors import CamtoolError, MethodError, ModelError
from camtool.explaining.explainer import Explainer
from camtool.explaining.explanation import Explanation
from camtool.explaining.word_checks import Score, WordCheck, check_words
from camtool.hooks.model_passes import run_model
from camtool.hooks.state.guard import guard
from camtool.inputs.image_files import ImageSource, read_image
from camtool.layers.image_tokens_in_text import TILED_IMAGE, TiledImage, find_image_tokens, find_placeholder
from camtool.methods import find_method
from camtool.models import Loaded, to_loaded
from camtool.models.vision_language import VisionLanguageModel
from camtool.outputs.class_scores import find_text_logits
from camtool.progress import follow_step
from camtool.rendering import image_writing
from camtool.rendering.contact_sheet import draw_captioned_images
from camtool.rendering.text_tables import align_columns
from camtool.targets import TextTokens
from camtool.warning_codes import MapWarning

# Type of the models whose text has no place for the image: the decoder looks at the image by cross-attention.
_CROSS_ATTENTION = "blip"

# Images beside each other: five of 240 pixels fill the width of a screen.
_MAX_COLUMNS = 5


@dataclass(frozen=True, eq=False)
class AnswerMaps(image_writing.Displayable):
    """The words of an answer, each with its map, shown under the photo in a notebook.

    Attributes:
        answer: The whole answer.
        explanations: One for each word, or for each token.
        checks: Where each word comes from; ``None`` before :meth:`verify`.
    """

    answer: str
    explanations: tuple[Explanation, ...]
    checks: tuple[WordCheck, ...] | None = None
    _score: Score | None = field(default=None, repr=False)

    @property
    def words(self) -> tuple[str, ...]:
        """The words, or tokens, in order."""
        return tuple(explanation.label for explanation in self.explanations)

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.explanations)

    def __len__(self) -> int:
        return len(self.explanations)

    def __getitem__(self, key: int | str) -> Explanation:
        """Return the explanation of a word by its number, or of the first one with this text.

        Raises:
            KeyError: The answer has no such word.
        """
        if isinstance(key, str):
            if key not in self.words:
                raise KeyError(f"the answer has no word {key!r}; its words are {', '.join(map(repr, self.words))}.")
            return self.explanations[self.words.index(key)]
        return self.explanations[key]

    def verify(self, *, fills: Sequence[str] = ("mean", "blur"), controls: int = 4, least: float = 0.2) -> AnswerMaps:
        """Return the answer with :attr:`checks`: does each word come from the image?

        The model scores the same words again: with the region of a word's map covered by each of the fills, with
        control regions of the same size covered, and with an image of one color. A word whose probability hardly falls
        gets the warning ``word-from-text``. This takes ``2 + words · fills · (1 + controls)`` forward passes.

        Args:
            fills: Ways to cover a region, as for the metrics: ``"mean"``, ``"blur"``, ``"zero"`` (black),
                ``"inpaint"``. What a region is needed for must hold for each of them.
            controls: The most control regions of each word.
            least: The least share of its probability that a word must lose to come from what was covered.

        Raises:
            CamtoolError: The answer was not made by :func:`tokens`, a fill is unknown, or a number is out of range.
        """
        if self._score is None:
            raise CamtoolError("verify() needs the model; call it on what camtool.tokens returned.")
        checks = check_words(self._score, self.explanations, fills=fills, controls=controls, least=least)
        marked = tuple(map(_add_source, self.explanations, checks))
        return replace(self, explanations=marked, checks=checks)

    @property
    def from_text(self) -> tuple[str, ...]:
        """The words that come from the text, not from the image; none before :meth:`verify`."""
        return tuple(check.word for check in self.checks or () if check.source == "text")

    @property
    def table(self) -> str:
        """The checks as a table with a line for each word; empty before :meth:`verify`."""
        heading = ("word", "comes from", "probability", "region covered", "covered elsewhere", "one color")
        rows = [heading]
        for check in self.checks or ():
            numbers = (check.probability, check.covered, check.control, check.blank)
            cells = ["-" if np.isnan(number) else format_percent(number) for number in numbers]
            rows.append((check.word, f"the {check.source}", cells[0], cells[1], cells[2], cells[3]))
        return "\n".join(align_columns(rows)) if self.checks else ""

    def to_pixels(self) -> NDArray[np.uint8]:
        """Draw the photo, and the overlay of each word above it, with the word's source if it is checked."""
        images, words = [self[0].photo, *(explanation.overlay() for explanation in self)], [*self.words]
        if self.checks is not None:
            words = [f"{check.word} (from the {check.source})" for check in self.checks]
        return draw_captioned_images(images, ["photo", *words], columns=min(len(images), _MAX_COLUMNS))

    def __repr__(self) -> str:
        marked = f"; from the text: {', '.join(map(repr, self.from_text))}" if self.from_text else ""
        return f"<AnswerMaps of {len(self)} words: {self.answer!r}{marked}>"


def tokens(
    model: nn.Module | Loaded,
    processor: Any,
    img: ImageSource,
    prompt: str,
    answer: str | None = None,
    *,
    by: Literal["words", "tokens"] = "words",
    max_new_tokens: int = 32,
    image: Literal["pixel_values", "thumbnail"] = "pixel_values",
    **settings: Any,
) -> AnswerMaps:
    """Show where a vision-language model looks for each word of its answer.

        camtool.tokens(model, processor, "street.jpg", "What is on the street?").save("answer.png")

    A word's score is the sum of the logits of its tokens, each given the prompt and the answer before it.

    Args:
        model: A model of Hugging Face that writes text about an image, also one of an encoder and a decoder.
        processor: Its processor, which prepares the image and the prompt.
        img: The photo.
        prompt: The question. If it has no placeholder for the image, the processor's chat template puts it there.
        answer: The text to explain; by default the model writes it, with the most likely token each time.
        by: A map for each word, or for each token.
        max_new_tokens: The length up to which the model writes.
        image: Where a processor cuts the photo to tiles, the maps lie on the tiles, whose grid is fine. "thumbnail":
            on the thumbnail of the photo, which the model reads as well.
        **settings: ``method``, ``layer`` and the other settings of :func:`camtool.explain`. The default method is
            ``"tam"`` where the text that is scored holds the image's tokens and no layer is named, else ``"gradcam"``.
            All methods but ``"tam"`` are often wrong for words, which their ``warnings`` say.

    Raises:
        ModelError: The model does not write text, or its decoder cannot be read, or ``processor`` is none.
        CamtoolError: The prompt has no place for the image, the answer is empty, or there is no thumbnail.
        ImageError: The processor cuts the image to tiles whose arrangement is not certain.
    """
    check_choice("by", by, ("words", "tokens"))
    check_choice("image", image, ("pixel_values", "thumbnail"))
    module = get_module(model)
    reader = _check_model(module)
    _check_processor(processor)
    photo = read_image(img)
    text = _write_prompt(processor, prompt)
    given = _process(processor, photo, text, prompt, module)
    if answer is None:
        written = _write_answer(module, given, max_new_tokens)
    else:
        written = _encode(module, processor.tokenizer, answer)
    words = _split_words(processor.tokenizer, written, by)
    if not words:
        raise CamtoolError(f"answer: there is no word in {answer!r}." if answer else "the model wrote no word.")
    start = _count_tokens_before(module, given)
    length = start + len(written)
    targets = [
        TextTokens(
            tuple(start + index for index in indices), tuple(written[index] for index in indices), label, length=length
        )
        for label, indices in words
    ]
    extended = _append(module, given, written)
    tiled = _find_tiled_image(reader, processor, photo, text, extended)
    joined = reader.join_to_images(extended, tiled)
    entries = {name: value[0] if isinstance(value, Tensor) else value for name, value in joined.items()}
    if image not in entries:
        raise CamtoolError(f"image={image!r}: the processor made one tile of the photo, so there is no thumbnail.")
    entries[image] = photo
    preparation = _Preparation(reader, processor, text, tiled, image)

    def explain_by(method: str, **options: Any) -> list[Explanation]:
        scored = len(written) + 1  # a word is scored where the token before it was read
        if find_method(method).name == "tam":
            context = _find_context(processor.tokenizer, given["input_ids"][0].tolist(), prompt, written)
            options = {"context": context, "answer_start": start, **options}
            scored = length  # it reads the logits at the image's tokens as well
        explainer = Explainer(module, method, transform=preparation, image=image, **options)
        explained: list[Explanation] = explainer(entries | _list_savings(module, scored), targets)
        return [explanation if explanation.method == "tam" else _add_warning(explanation) for explanation in explained]

    explanations = explain_by(**settings) if "method" in settings else _explain_by_default(explain_by, module, settings)
    score = _Scorer(preparation, joined | _list_savings(module, len(written) + 1), tuple(targets))
    text = processor.tokenizer.decode(written, skip_special_tokens=True).strip()
    return AnswerMaps(text, tuple(explanations), _score=score)


@dataclass(frozen=True, eq=False)
class _Scorer:
    """The probabilities of the words of an answer, given an image.

    Attributes:
        preparation: From an image to the model's input.
        inputs: All inputs of the model for the photo that was explained.
        targets: The words.
    """

    preparation: _Preparation
    inputs: Mapping[str, Any]
    targets: tuple[TextTokens, ...]

    def __call__(self, image: Image.Image) -> NDArray[np.float64]:
        """Return the probability of each word, given the text before it, ``(W,)``."""
        reader, old = self.preparation.reader, self.inputs
        images = {name: value.to(old[name]) for name, value in self.preparation.prepare(image).items() if name in old}
        with guard(reader), torch.no_grad():
            output = run_model(reader, {**old, **images})
        logits = find_text_logits(output)
        assert logits is not None  # else the words could not have been explained
        output.logits = logits.double().log_softmax(-1)
        return np.array([float(target(output).exp()) for target in self.targets])


def _add_source(explanation: Explanation, check: WordCheck) -> Explanation:
    """Return an explanation of a word with a warning if the word comes from the text, and without an earlier one."""
    others = tuple(warning for warning in explanation.warnings if warning.code != "word-from-text")
    own = (MapWarning(check.sentence, "word-from-text"),) if check.source == "text" else ()
    return replace(explanation, warnings=(*others, *own))


def _explain_by_default(
    explain_by: Callable[..., list[Explanation]], module: nn.Module, settings: Mapping[str, Any]
) -> list[Explanation]:
    """Return the maps of TAM where the model allows it, else those of Grad-CAM."""
    if settings.get("layer") is None and not _is_encoder_decoder(module) and not _is_cross_attending(module):
        # Of other models only a forward pass shows whether the text reads the image's cells or queries.
        with suppress(MethodError):
            return explain_by("tam", **settings)
    return explain_by("gradcam", **settings)


def _add_warning(explanation: Explanation) -> Explanation:
    """Return an explanation of a word with a warning about its method."""
    sentence = (
        f"Maps of words by {explanation.method!r} are often wrong: in scenes with known objects, methods other than "
        "'tam' had the peak on the object of the word in at most 77 % of the maps, 'tam' in 99 %."
    )
    return replace(explanation, warnings=(*explanation.warnings, MapWarning(sentence, "word-method")))


# ------------------------------------------------------------------------------------------------ model and processor


@dataclass(frozen=True, eq=False)
class _Preparation:
    """Transform from an image to the model's input ``(C, H, W)``, computed by a processor.

    Attributes:
        reader: The model.
        processor: Its processor.
        text: What the processor gets beside the image.
        tiled: The arrangement of tiles; None if there is one tile.
        name: Which of the model's inputs is returned.
    """

    reader: VisionLanguageModel
    processor: Any
    text: str
    tiled: TiledImage | None
    name: str

    def __call__(self, image: Image.Image) -> Tensor:
        return self.prepare(image)[self.name][0]

    def prepare(self, image: Image.Image) -> dict[str, Tensor]:
        """Return the images ``(1, C, H, W)`` among the model's inputs, by name."""
        # The image processor alone may have other settings, e.g. make one tile.
        prepared = dict(self.processor(images=image, text=self.text, return_tensors="pt"))
        del prepared["input_ids"]
        joined = self.reader.join_to_images(prepared, self.tiled)
        return {
            name: tensor for name, tensor in joined.items() if isinstance(tensor, Tensor) and tensor.is_floating_point()
        }


def _find_tiled_image(
    reader: VisionLanguageModel, processor: Any, photo: Image.Image, text: str, inputs: Mapping[str, Any]
) -> TiledImage | None:
    """Return how the processor cuts photos of this size to tiles; None if it makes one tile.

    Some models only show it by the pixels. A pattern shows it with certainty, which a gray photo does not.
    """
    rows, columns = (np.linspace(0, 255, length) for length in photo.size[::-1])
    planes = np.broadcast_arrays(rows[:, None], columns, 255 - rows[:, None])
    pattern = Image.fromarray(np.stack(planes, -1).astype(np.uint8))
    pixels = processor(images=pattern, text=text, return_tensors="pt")["pixel_values"]
    return reader.join_to_images({**inputs, "pixel_values": pixels}).get(TILED_IMAGE)


def _check_model(module: nn.Module) -> VisionLanguageModel:
    """Return the model with images as inputs.

    Raises:
        ModelError: It does not write text from an image among the tokens of the text.
    """
    reader = to_loaded(module).model
    if not isinstance(reader, VisionLanguageModel) or not callable(getattr(module, "generate", None)):
        raise ModelError(
            f"model: {type(module).__name__} does not write text about images; pass a model of Hugging Face for "
            "image-text-to-text, e.g. LlavaForConditionalGeneration."
        )
    if hasattr(module, "text_encoder") or getattr(reader.config, "use_decoder_only_language_model", True) is False:
        raise ModelError(
            f"model: {type(module).__name__} has a text encoder for the prompt, which tokens() cannot read; "
            "pass a model whose decoder reads the prompt, e.g. BlipForConditionalGeneration or "
            "InstructBlipForConditionalGeneration with a LLaMA, or explain a score of its vision tower by "
            "camtool.explain."
        )
    return reader


def _check_processor(processor: Any) -> None:
    """Check that a processor prepares both the image and the text.

    Raises:
        ModelError: It does not.
    """
    if not callable(processor) or not all(hasattr(processor, name) for name in ("tokenizer", "image_processor")):
        raise ModelError(
            f"processor: {type(processor).__name__} does not prepare an image and a text; pass the model's own, e.g. "
            "transformers.AutoProcessor.from_pretrained(name)."
        )


def _write_prompt(processor: Any, prompt: str) -> str:
    """Return the prompt as a text with a placeholder for the image, by the processor's template if it has one."""
    placeholder = str(getattr(processor, "image_token", "") or "")
    if not getattr(processor, "chat_template", None) or (placeholder and placeholder in prompt):
        return prompt
    content = [{"type": "image"}, {"type": "text", "text": prompt}]
    return str(processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True))


def _process(processor: Any, photo: Image.Image, text: str, prompt: str, module: nn.Module) -> dict[str, Any]:
    """Return the model's inputs for the photo and the text of the prompt, on its device.

    Raises:
        CamtoolError: The prompt has no place for the image.
    """
    placeholder = str(getattr(processor, "image_token", "") or "")
    device = next(module.parameters()).device
    hint = f", e.g. {placeholder + ' ' + prompt!r}" if placeholder else ""
    refusal = f"prompt: {prompt!r} has no place for the image; write the placeholder into it{hint}."
    try:
        prepared = processor(images=photo, text=text, return_tensors="pt")
    except ValueError as error:
        if placeholder in text:
            raise
        raise CamtoolError(refusal) from error
    given = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in prepared.items()}
    image_tokens = find_image_tokens(module, given)
    if image_tokens is None or (not image_tokens.positions and not _is_cross_attending(module)):
        raise CamtoolError(refusal)
    return given


def _is_cross_attending(module: nn.Module) -> bool:
    """Check that the text of the model has no place for the image."""
    return getattr(module.config, "model_type", None) == _CROSS_ATTENTION


def _is_encoder_decoder(module: nn.Module) -> bool:
    """Check that the answer is the text of a decoder, which does not hold the prompt."""
    config: Any = module.config
    return bool(config.is_encoder_decoder)


def _find_start_token(module: nn.Module) -> int:
    """Return the token with which the text of a decoder begins.

    Raises:
        ModelError: The configuration does not say it.
    """
    config: Any = module.config
    for configuration in (getattr(module, "generation_config", None), config, getattr(config, "text_config", None)):
        token = getattr(configuration, "decoder_start_token_id", None)
        if isinstance(token, int):
            return token
    raise ModelError(
        f"model: the configuration of {type(module).__name__} has no decoder_start_token_id, with which its answer "
        "begins; set model.generation_config.decoder_start_token_id."
    )


def _count_tokens_before(module: nn.Module, given: Mapping[str, Any]) -> int:
    """Return the number of tokens before the answer, in the text that the decoder reads."""
    if _is_encoder_decoder(module):
        return 1
    return int(given["input_ids"].shape[1]) - _is_cross_attending(module)


@follow_step("Writing an answer")
def _write_answer(module: nn.Module, given: Mapping[str, Any], count: int) -> list[int]:
    """Return the tokens that the model writes, which stand for no image."""
    placeholder = find_placeholder(module)
    options = {} if placeholder is None else {"suppress_tokens": [placeholder]}
    with torch.no_grad(), guard(module):
        copied = {name: value.clone() if isinstance(value, Tensor) else value for name, value in given.items()}
        # BLIP writes to the prompt.
        text = module.generate(**copied, max_new_tokens=count, do_sample=False, **options)  # type: ignore[operator]
    return list(text[0, _count_tokens_before(module, given) :].tolist())


def _list_savings(module: nn.Module, scored: int) -> dict[str, Any]:
    """Return arguments with which the model takes less memory: no cache, and the logits of the last tokens alone.

    Args:
        module: The model, which may know neither argument.
        scored: The number of tokens whose logits are needed.
    """
    parameters = inspect.signature(module.forward).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    savings: dict[str, Any] = {"use_cache": False} if takes_any or "use_cache" in parameters else {}
    return savings | ({"logits_to_keep": scored} if "logits_to_keep" in parameters else {})


def _encode(module: nn.Module, tokenizer: Any, answer: str) -> list[int]:
    """Return the tokens of an answer as the model writes them, some after a first token that is always the same."""
    encoded: list[int] = tokenizer(answer, add_special_tokens=False)["input_ids"]
    forced = getattr(getattr(module, "generation_config", None), "forced_bos_token_id", None)
    return [forced, *encoded] if _is_encoder_decoder(module) and isinstance(forced, int) else encoded


def _append(module: nn.Module, given: Mapping[str, Any], written: Sequence[int]) -> dict[str, Tensor]:
    """Return the inputs with the answer behind the prompt, or in the text of the decoder.

    Raises:
        CamtoolError: The texts of encoder and decoder have as many tokens, so that their activations look alike.
    """
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    ids = tensors["input_ids"]
    if _is_encoder_decoder(module):
        decoded = ids.new_tensor([[_find_start_token(module), *written]])
        if decoded.shape == ids.shape:
            raise CamtoolError(
                f"answer: it has as many tokens as the prompt with the image, {ids.shape[1]}, so that encoder and "
                "decoder cannot be told apart; give an answer that is a word longer or shorter."
            )
        return {**tensors, "decoder_input_ids": decoded}
    if _is_cross_attending(module):
        tensors = _cut_prompt(module, tensors)
    return _extend(tensors, written)


def _cut_prompt(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the prompt as BLIP's ``generate`` does: with a first token of its own, and without the separator."""
    config: Any = module.config
    shape = tensors["input_ids"].shape
    cut = {name: value[:, :-1].clone() if value.shape == shape else value for name, value in tensors.items()}
    cut["input_ids"][:, 0] = config.text_config.bos_token_id
    return cut


def _extend(tensors: Mapping[str, Tensor], written: Sequence[int]) -> dict[str, Tensor]:
    """Return the inputs with the answer behind the prompt, also in masks and types of tokens."""
    ids = tensors["input_ids"]
    added = {"input_ids": ids.new_tensor([written]), "attention_mask": ids.new_ones(1, len(written))}
    longer = dict(tensors)
    for name, value in tensors.items():
        # The prompt of a Q-Former is a text of its own, of any length.
        if value.shape == ids.shape and not name.startswith("qformer_"):
            behind = added.get(name, value.new_zeros(1, len(written)))
            longer[name] = torch.cat([value, behind.to(value)], 1)
    return longer


# --------------------------------------------------------------------------------------------------------------- words


def _find_context(tokenizer: Any, ids: Sequence[int], prompt: str, written: Sequence[int]) -> list[int]:
    """Return where the words of prompt and answer are in the text, without special tokens.

    A template adds words around the prompt, e.g. a role. If the prompt's own tokens are not found among those of the
    text, all words of the text count.
    """
    special = set(tokenizer.all_special_ids)
    own = [token for token in tokenizer(prompt, add_special_tokens=False)["input_ids"] if token not in special]
    starts = [index for index in range(len(ids)) if own and list(ids[index : index + len(own)]) == own]
    inside = range(starts[-1], starts[-1] + len(own)) if starts else range(len(ids))
    indices = [*inside, *range(len(ids), len(ids) + len(written))]
    both = [*ids, *written]
    return [index for index in indices if both[index] not in special]


def _find_continuations(tokenizer: Any, written: Sequence[int]) -> list[bool]:
    """Return for each token whether it continues a word."""
    pieces = tokenizer.convert_ids_to_tokens([*written])
    # Byte pairs and sentence pieces mark the first token of a word, word pieces all others.
    marks_first = any(piece[:1] in "Ġ▁" for piece in tokenizer.tokenize("a b"))
    return [piece[:1] not in "Ġ▁" if marks_first else piece.startswith("##") for piece in pieces]


def _split_words(tokenizer: Any, written: Sequence[int], by: str) -> list[tuple[str, list[int]]]:
    """Return the words of an answer, each with the indices of its tokens; without special tokens and punctuation."""
    words: list[list[int]] = []
    for index, continues in enumerate(_find_continuations(tokenizer, written)):
        if written[index] in tokenizer.all_special_ids:
            continue
        if by == "words" and continues and words and words[-1][-1] == index - 1:
            words[-1].append(index)
        else:
            words.append([index])
    named = [(tokenizer.decode([written[index] for index in indices]).strip(), indices) for indices in words]
    return [(text, indices) for text, indices in named if any(map(str.isalnum, text))]
