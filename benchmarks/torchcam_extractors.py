"""The extractors of torch-cam 0.5 on ``camtool.observe``, in their places: a plugin of pytest for torch-cam's tests."""

import importlib
from contextlib import contextmanager
from difflib import get_close_matches

import torch
from torch import nn
from torch.nn.functional import interpolate

import camtool


class _CAM:
    _method, _takes_targets, _takes_scores, _score_used = "eigencam", False, False, False

    def __init__(
        self, model, target_layer=None, input_shape=(3, 224, 224), enable_hooks=True, reshape_transform=None, **options
    ):
        if reshape_transform is not None and not callable(reshape_transform):
            raise TypeError("`reshape_transform` must be callable")
        if reshape_transform is not None and target_layer is None:
            raise ValueError("`target_layer` must be specified when using `reshape_transform`")
        self.model, self._options, names = model, options, dict(model.named_modules())
        layers = target_layer if isinstance(target_layer, list) else [target_layer]
        if target_layer is None:
            try:
                layers = [camtool.candidate_layers(model, torch.rand(1, *input_shape)).chosen.name]
            except (camtool.LayerError, AttributeError) as error:
                raise ValueError("specify `target_layer` (see `model.named_modules()`)") from error
        if any(not isinstance(layer, (str, nn.Module)) for layer in layers):
            raise TypeError("`target_layer` must be a name, a module, or a list of these")
        known = {module: name for name, module in reversed(names.items())}
        self.target_names = [layer if isinstance(layer, str) else known.get(layer, "?") for layer in layers]
        if missing := [name for name in self.target_names if name not in names]:
            near = {name: matches for name in missing if (matches := get_close_matches(name, names))}
            raise ValueError(f"no layers of the model: {missing}" + f"; the closest are {near}" * bool(near))
        self.hook_handles, self._hooks_enabled = [], False
        self.reset_hooks()
        if enable_hooks:
            self.enable_hooks()

    def reset_hooks(self):
        self._blocks = [camtool.observe(self.model, name, start_graph=True, keep=1) for name in self.target_names]

    def enable_hooks(self):
        self.hook_handles = self.hook_handles or [block.__enter__() for block in self._blocks]
        self._hooks_enabled = True

    def disable_hooks(self):
        while self.hook_handles:
            self.hook_handles.pop().__exit__(None, None, None)
        self._hooks_enabled = False

    remove_hooks = disable_hooks

    @contextmanager
    def _hooks_off(self):
        enabled = self._hooks_enabled
        self.disable_hooks()
        try:
            yield
        finally:
            if enabled:
                self.enable_hooks()

    @contextmanager
    def _eval_mode(self):
        modes = [(module, module.training) for module in self.model.modules()]
        try:
            yield self.model.eval()
        finally:
            for module, mode in modes:
                module.training = mode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.disable_hooks()
        self.reset_hooks()

    def _read(self, name):
        tensors = [None] * len(self._blocks)
        for place, block in enumerate(self._blocks if all(map(len, self._blocks)) else []):

            def keep(evidence, place=place):
                tensors[place] = getattr(evidence, name)
                return evidence.activations.sum(1)

            block.explain(torch.sum, method=keep)
        return tensors

    hook_a = _hook_outputs = property(lambda self: self._read("activations"))
    hook_g = property(lambda self: self._read("gradients"))

    def __call__(self, class_idx=None, scores=None, normalized=True, *, targets=None, **_):
        return self.compute_cams(class_idx, scores, normalized, targets=targets)

    def compute_cams(self, class_idx=None, scores=None, normalized=True, *, targets=None, **_):
        if (class_idx is None) == (targets is None):
            raise ValueError("provide exactly one of class_idx or targets")
        if targets is not None and not self._takes_targets:
            raise ValueError(f"{type(self).__name__} does not support output targets")
        if not all(map(len, self._blocks)):
            raise AssertionError("run the model first")
        classes = class_idx if isinstance(class_idx, list) else [class_idx]
        if targets is None and min(classes) < 0:
            raise ValueError(f"class_idx must not be negative, got {class_idx}")
        request = class_idx if targets is None else targets
        if targets is None and self._takes_scores and isinstance(scores, torch.Tensor) and scores.requires_grad:
            classes = classes if isinstance(class_idx, list) else classes * len(scores)
            request = [lambda _, row=row, index=index: scores[row, index] for row, index in enumerate(classes)]
        return [self._explain(block, request, normalized) for block in self._blocks]

    def _explain(self, block, request, normalized):
        try:
            results = block.explain(request, method=self._method, **self._options)
        except camtool.TargetError as error:
            raise ValueError(f"each target must return a scalar tensor: {error}") from error
        except camtool.LayerError as error:
            raise RuntimeError(f"the target score is not connected to every target layer: {error}") from error
        like = next(self.model.parameters(), torch.empty(0))
        maps = torch.stack([torch.from_numpy(result.raw) for result in results]).to(like)
        return self._normalize(maps) if normalized else maps

    @staticmethod
    def _normalize(cams, spatial_dims=None, eps=1e-8):
        dims = tuple(range(-(spatial_dims or cams.ndim - 1), 0))
        cams = cams - cams.amin(dims, keepdim=True)
        return cams / (cams.amax(dims, keepdim=True) + eps)

    @classmethod
    def fuse_cams(cls, cams, target_shape=None):
        if not isinstance(cams, list):
            raise TypeError("`cams` must be a list")
        if not cams:
            raise ValueError("`cams` is empty")
        if len(cams) == 1:
            return cams[0]
        shape = target_shape or tuple(map(max, zip(*(cam.shape[1:] for cam in cams), strict=True)))
        mode = "bilinear" if cams[0].ndim == 3 else "trilinear"
        sized = [interpolate(cam[:, None], shape, mode=mode, align_corners=False)[:, 0] for cam in cams]
        return torch.stack(sized).max(0).values

    def __repr__(self):
        return f"{type(self).__name__}(target_layer={self.target_names})"


class _LinearCAM(_CAM):
    def __init__(self, model, target_layer=None, fc_layer=None, **options):
        if isinstance(target_layer, list):
            raise ValueError("CAM takes one target layer")
        if isinstance(fc_layer, int):
            raise TypeError("`fc_layer` must be a name or a module")
        super().__init__(model, target_layer, **options)


class _SampledCAM(_CAM):
    _takes_targets = True

    def __init__(self, model, target_layer=None, batch_size=32, num_samples=None, **options):
        self._text = f", num_samples={num_samples or 4}, std=0.3" * (self._method == "smoothgradcam++")
        super().__init__(model, target_layer, **({} if num_samples is None else {"samples": num_samples}), **options)

    def __repr__(self):
        return f"{super().__repr__()[:-1]}{self._text})"


class _GradientCAM(_CAM):
    _takes_targets = _takes_scores = True


_BASES = {"_CAM": _CAM, "CAM": _LinearCAM}
_BASES |= dict.fromkeys(("ScoreCAM", "SSCAM", "ISCAM", "SmoothGradCAMpp"), _SampledCAM)
_BASES |= dict.fromkeys(("GradCAM", "GradCAMpp", "XGradCAM", "LayerCAM", "LeGrad"), _GradientCAM)
_CLASSES = {name: type(name, (base,), {"_method": name.lower().replace("pp", "++")}) for name, base in _BASES.items()}
_CLASSES["_CAM"] = _CAM
for _part in ("methods.core", "methods.activation", "methods.gradient", "methods"):
    _module = importlib.import_module(f"torchcam.{_part}")
    vars(_module).update({name: kind for name, kind in _CLASSES.items() if name in vars(_module)})
for _wrapper in (_module.RefineCAM, _module.FinerCAM):
    _defaults = _wrapper.__init__.__kwdefaults__
    _defaults["base_method"] = _CLASSES[_defaults["base_method"].__name__]
