"""CAM methods: functions from evidence to a map, registered in :data:`METHODS`; one file per family."""

from __future__ import annotations

import functools as _functools
import typing as _typing

from camtool.arguments.foreign_names import raise_missing_name as _raise_missing_name

# Importing a family registers its methods; importing these files registers the wrappers, too.
from camtool.methods.augmentation import tta as _tta  # noqa: F401
from camtool.methods.families import ablation as ablation
from camtool.methods.families import activation as activation
from camtool.methods.families import attention as attention
from camtool.methods.families import averaged_gradient as averaged_gradient
from camtool.methods.families import competition as competition
from camtool.methods.families import gradient as gradient
from camtool.methods.families import input_gradient as input_gradient
from camtool.methods.families import opticam as opticam
from camtool.methods.families import rise as rise
from camtool.methods.families import scorecam as scorecam
from camtool.methods.families import text_tokens as text_tokens
from camtool.methods.registry import COSTS as COSTS
from camtool.methods.registry import METHODS as METHODS
from camtool.methods.registry import WRAPPERS as WRAPPERS
from camtool.methods.registry import Method as Method
from camtool.methods.registry import MethodFunction as MethodFunction
from camtool.methods.registry import adapt_method as adapt_method
from camtool.methods.registry import check_options as check_options
from camtool.methods.registry import find_method as find_method
from camtool.methods.registry import method as method
from camtool.methods.registry import weighting as weighting
from camtool.methods.registry import wrap_method as wrap_method
from camtool.methods.registry import wrapper as wrapper

if not _typing.TYPE_CHECKING:
    __getattr__ = _functools.partial(_raise_missing_name, __name__)
