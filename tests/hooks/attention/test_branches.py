"""What follows each attention, up to the skip connection around it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from camtool.hooks.attention.branches import capture_branches
from tests.helpers.two_towers import ScaledBlock
from tests.helpers.vision_transformers import ATTENTION_FUNCTIONS, make_images, make_tiny_vit


@pytest.mark.parametrize("how", ATTENTION_FUNCTIONS)
def test_a_branch_has_the_tokens_of_its_skip_connection_and_projects_any_output(how: str) -> None:
    net, x = make_tiny_vit(how), make_images()
    captured = capture_branches(net, x)
    tokens = net.embed(x)
    for block, call, branch in zip(net.blocks, captured.attention.calls, captured.branches, strict=True):
        assert branch is not None
        assert_close(branch.skip, tokens.detach())
        after_attention = tokens + block.attention(block.norm1(tokens))
        assert_close(branch.skip + branch.project(call.output), after_attention.detach())
        other = torch.randn_like(call.output)
        if how != "in place":  # whose output is written to before the projection, which undoes it
            expected = block.attention.proj(other.transpose(1, 2).flatten(2))
            assert_close(branch.project(other), expected.detach())
        tokens = block(tokens)
    last = captured.attention.blocks[-1]
    assert last is not None
    assert last.name == "blocks.2"
    assert_close(last.output, tokens.detach())


def test_an_output_that_is_written_elsewhere_or_gated_has_no_branch() -> None:
    class Writes(ScaledBlock):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = torch.zeros_like(x)
            kept[:] = self.attend(self.norm1(x))
            return x + kept

    class Gates(ScaledBlock):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.attend(self.norm1(x)) * x.sigmoid()

    captured = capture_branches(nn.Sequential(Writes(), Gates(), ScaledBlock()), torch.randn(2, 5, 12))
    assert [branch is None for branch in captured.branches] == [True, True, False]


def test_projecting_does_not_write_to_what_was_captured() -> None:
    captured = capture_branches(nn.Sequential(ScaledBlock()), torch.randn(2, 5, 12))
    (branch,), (call,) = captured.branches, captured.attention.calls
    assert branch is not None
    first = branch.project(call.output)
    output, skip = call.output.clone(), branch.skip.clone()
    branch.project(torch.randn_like(call.output))
    assert torch.equal(call.output, output)
    assert torch.equal(branch.skip, skip)
    assert torch.equal(branch.project(call.output), first)
