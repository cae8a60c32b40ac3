"""Where the two well-known libraries compute something else than camtool, and which test shows it.

It stands apart from :mod:`test_peer_deviations` so that it can be read where neither library is installed.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEVIATIONS", "Deviation"]

GRAD_CAM, TORCHCAM = "grad-cam 1.5.7", "torchcam 0.5.0"
BOTH = f"{GRAD_CAM}, {TORCHCAM}"


@dataclass(frozen=True)
class Deviation:
    """Where a peer computes something else.

    Attributes:
        peer: The library, or both.
        methods: The methods as people call them.
        what: What it does.
        here: What camtool does.
        shown: The test in ``test_peer_deviations.py`` that makes the peer's numbers by this very departure.
    """

    peer: str
    methods: str
    what: str
    here: str
    shown: str


DEVIATIONS = (
    Deviation(
        BOTH,
        "all",
        "the map is rectified, divided by its peak + 1e-7 (1e-8), and by grad-cam resized and scaled once more.",
        "`Explanation.raw` is left as it is; a heatmap is resized, then scaled, once.",
        "test_a_heatmap_is_the_same_as_grad_cams",
    ),
    Deviation(
        BOTH,
        "all, at a layer with an in-place ReLU behind it (densenet121 `features`, vgg11 `features.18`)",
        "the activations kept are an alias, which the ReLU overwrites: A becomes relu(A). torchcam's gradient then "
        "is that of relu(A) too; grad-cam pairs the gradient of the one with the values of the other.",
        "the layer hands a clone on, so A is what it returned. Compared at layers that nothing overwrites. For CAM on "
        "DenseNet the accident is right, as relu(A) is what the model pools: there the maps are equal.",
        "test_an_in_place_relu_behind_the_layer_overwrites_what_the_peers_keep",
    ),
    Deviation(
        GRAD_CAM,
        "all, at several layers",
        "maps are scaled into [0, 1], brought to the picture's size one by one and averaged there.",
        'merge="mean" divides each by its peak and averages on the finest of the layers\' grids.',
        "test_grad_cam_averages_layers_at_the_pictures_size",
    ),
    Deviation(
        TORCHCAM,
        "all, at several layers",
        "maps are scaled into [0, 1] by their extremes, resized, and their maximum is taken.",
        'merge="max" divides each by its peak instead, so that what is nowhere zero stays so.',
        "test_torchcam_takes_the_maximum_of_maps_that_it_began_at_zero",
    ),
    Deviation(
        TORCHCAM,
        "CAM",
        "a head is taken to be linear behind the pooling if the model has just one nn.Linear.",
        "the head must give the model's own output; otherwise MethodError.",
        "test_torchcam_draws_a_cam_where_the_head_does_not_pool_the_mean",
    ),
    Deviation(
        GRAD_CAM,
        "Grad-CAM++",
        "1e-6 is added to the denominator 2 g² + g³ Σ A: where g is below about 1e-3 this, not the equation, decides.",
        "g² is cancelled first, so nothing has to be added. Compared at 10⁴ times the logit, where 1e-6 is nothing.",
        "test_grad_cams_constant_decides_gradcam_plus_plus_where_gradients_are_small",
    ),
    Deviation(
        TORCHCAM,
        "Grad-CAM++",
        "alpha is divided in place on a copy made by indexing, so that the division is lost and w = Σ relu(g)³.",
        "eq. 19; not compared.",
        "test_torchcams_gradcam_plus_plus_sums_cubes",
    ),
    Deviation(
        TORCHCAM,
        "Smooth Grad-CAM++",
        "alpha is made of all the noisy copies, but weighs the gradient of the last one, and the map sums the "
        "activations of the last one. The noise has a standard deviation of 0.3 in the input's own units, from torch's "
        "global generator, and Σ A D3 is summed over the positions of both.",
        "the mean gradient is weighed and the picture's own activations are summed; alpha takes D3 Σ A; the noise is a "
        "part of the picture's range, with a seed of its own.",
        "test_torchcams_smooth_gradcam_plus_plus_draws_the_last_noisy_picture",
    ),
    Deviation(
        BOTH,
        "XGrad-CAM",
        "1e-7 and 1e-8 are added to Σ A, whatever its sign and size.",
        "a channel that sums to rounding noise gets no weight; the rest is divided as it is.",
        "test_the_peers_constants_show_in_xgradcam_where_channels_sum_to_little",
    ),
    Deviation(
        TORCHCAM,
        "LayerCAM, at several layers",
        "tanh(2 M) is taken of every layer's map, the deepest too, before the maps are resized and merged.",
        'merge="layercam" leaves the deepest layer as it is, as the paper does, and resizes first.',
        "test_torchcam_raises_the_deepest_layer_too",
    ),
    Deviation(
        GRAD_CAM,
        "Eigen-CAM, EigenGradCAM, eigen_smooth",
        "each channel's mean is taken off before the decomposition, which the paper does not do.",
        "nothing is centred.",
        "test_grad_cam_centres_what_eigen_methods_decompose",
    ),
    Deviation(
        GRAD_CAM,
        "Eigen-CAM, EigenGradCAM, eigen_smooth",
        "the sign is the one that the decomposition happens to give, which may turn the map over, so that what is "
        "strongest is cut off.",
        "the map goes with the energy, the sum of squares, of what is decomposed.",
        "test_grad_cams_eigen_maps_are_turned_over_by_chance",
    ),
    Deviation(
        GRAD_CAM,
        "Seg-Eigen-CAM",
        "each channel's mean is taken off before the decomposition.",
        "nothing is centred, as in Eigen-CAM, which the paper extends. The rule for the sign is the same.",
        "test_grad_cam_centres_seg_eigen_cam",
    ),
    Deviation(
        GRAD_CAM,
        "KPCA-CAM",
        "the sign is scikit-learn's: the value that is largest in magnitude is positive.",
        "the map goes with the energy Σ A² of the activations. The maps are otherwise equal.",
        "test_grad_cams_kpca_cam_goes_by_its_largest_value",
    ),
    Deviation(
        GRAD_CAM,
        "FEM",
        "a channel's weight is the part of the positions that are above its mean by more than two standard deviations, "
        "and multiplies the whole channel.",
        "as in the paper, the mean of the channel is added at those positions, and nothing elsewhere.",
        "test_grad_cams_fem_weighs_by_the_part_of_strong_positions",
    ),
    Deviation(
        GRAD_CAM,
        "random",
        "weights come from numpy's global generator: each image and each call has others.",
        "weights have a seed of their own, and are the same for every image and call.",
        "test_grad_cams_random_weights_are_drawn_from_numpy",
    ),
    Deviation(
        GRAD_CAM,
        "Score-CAM",
        "channels are brought to the picture's size with their corners aligned.",
        "maps are resized between the centres of cells, here as everywhere. Where nothing is resized the maps are "
        "equal.",
        "test_grad_cam_aligns_the_corners_of_score_cams_masks",
    ),
    Deviation(
        TORCHCAM,
        "Score-CAM",
        "channels are scaled into [0, 1] before they are resized, so that masks seldom reach 1.",
        "they are scaled after, as in the paper; `scale_first=True` does it torchcam's way, and the maps are equal.",
        "test_torchcam_scales_score_cams_masks_before_it_resizes_them",
    ),
    Deviation(
        TORCHCAM,
        "SS-CAM",
        "noise with a standard deviation of 2 is put on masks that are already in [0, 1], pixel by pixel, from "
        "torch's global generator; nothing scales them again.",
        "noise is put on the activations, which are then resized and scaled; the channels share it, and it has a seed.",
        "test_torchcams_sscam_puts_noise_on_finished_masks",
    ),
    Deviation(
        TORCHCAM,
        "IS-CAM",
        "step i of n shows the mask (1 + 2 + ... + i) / n times: of 10 steps the last is 5.5 times as bright as it "
        "should be.",
        "step i shows i / n of the mask, and the last one the mask itself.",
        "test_torchcams_iscam_adds_up_its_steps",
    ),
    Deviation(
        GRAD_CAM,
        "Ablation-CAM, at a layer whose smallest value is not 0",
        "a channel is not set to zero but to the smallest value less 1e7, and that smallest value is of all the "
        "variants run at once: the i-th of a batch gets i times 1e7, so that the map depends on the batch size.",
        "a channel is set to zero, whatever the layer. Compared behind a ReLU, where grad-cam does it too.",
        "test_grad_cams_ablation_depends_on_the_batch_size",
    ),
    Deviation(
        GRAD_CAM,
        "Ablation-CAM, of a negative score",
        "the drop is divided by the score itself, so that the map shows what speaks against the target.",
        "the drop is divided by the score's magnitude.",
        "test_grad_cams_ablation_of_a_negative_score_is_turned_over",
    ),
    Deviation(
        GRAD_CAM,
        "FullGrad",
        "every channel of every layer is scaled into [0, 1] by itself, every colour of the picture too, so that a "
        "channel that contributes next to nothing counts as much as the strongest.",
        "the channels of a layer are scaled together, as the authors' program does.",
        "test_grad_cams_fullgrad_scales_each_channel_by_itself",
    ),
    Deviation(
        GRAD_CAM,
        "FullGrad",
        "only layers whose type is exactly Conv2d or BatchNorm2d count; other norms, other convolutions and their "
        "subclasses are left out.",
        "every call of a convolution or a norm counts, whatever made it.",
        "test_grad_cams_fullgrad_leaves_other_norms_out",
    ),
    Deviation(
        GRAD_CAM,
        "Finer-CAM",
        "the gradient flows through the probabilities by which the rivals are weighed too.",
        "the rivals' shares are settled on the image and held, so that the map is about differences of logits alone. "
        "The scores are equal.",
        "test_grad_cams_finer_cam_also_explains_the_rivals_shares",
    ),
    Deviation(
        BOTH,
        "Finer-CAM",
        "the rivals are the classes whose logits on the image are nearest to the class' own, so that a cat is held "
        "against dogs on a photo of dogs.",
        "they are the classes whose weights in the model's head are most similar to the class' own, as in the paper; "
        "nearest logits are for models without a linear head.",
        "test_their_finer_cam_takes_the_nearest_logits",
    ),
    Deviation(
        TORCHCAM,
        "Finer-CAM",
        "the rivals count alike, 0.6 of their mean.",
        'by default they count by their probabilities, and in full, as in the authors\' code; weighting="mean", '
        "weight=0.6 is torchcam's, and the maps are equal.",
        "test_torchcams_finer_cam_is_a_matter_of_options",
    ),
    Deviation(
        GRAD_CAM,
        "RefineCAM",
        "the maps are multiplied at the picture's size.",
        'merge="refinecam" multiplies them on the finest of the layers\' grids.',
        "test_grad_cams_refine_cam_multiplies_at_the_pictures_size",
    ),
    Deviation(
        GRAD_CAM,
        "RefineCAM, eigen_smooth=True",
        "it is handed on by position, where the base method expects aug_smooth: what was asked for is not done.",
        "`eigen:` and `tta:` stand before a method's name, at one layer or several.",
        "test_grad_cams_refine_cam_takes_one_smoothing_for_the_other",
    ),
    Deviation(
        TORCHCAM,
        "RefineCAM",
        "the base method is by default its own Grad-CAM++, with the error above.",
        'merge="refinecam" of correct maps. Of the same maps it makes the same map, but for a factor.',
        "test_torchcams_refine_cam_is_of_its_own_gradcam_plus_plus",
    ),
    Deviation(
        GRAD_CAM,
        "SESS",
        "each window's map is scaled once more after it was brought to size, windows are square, twelve scales are the "
        "default, and the whole is blurred (11 x 11 pixels, a deviation of 5) in the end.",
        "a window's map is scaled once, windows have the picture's shape, three scales are the default, and nothing is "
        "blurred.",
        "test_grad_cams_sess_scales_twice_and_blurs",
    ),
    Deviation(
        GRAD_CAM,
        "aug_smooth",
        "the numbers that the model gets are multiplied by 0.9 and 1.1, which is contrast about the mean colour and "
        "not brightness, and maps are scaled into [0, 1] before they are averaged; the mean is not scaled again.",
        "`tta:` changes brightness, from black, where black is known, and averages the maps as they come.",
        "test_grad_cams_aug_smooth_multiplies_normalised_numbers",
    ),
    Deviation(
        GRAD_CAM,
        "guided backprop",
        "the gradient is returned with its colours and signs, of the first image alone, and a heatmap of it is left "
        "to the user.",
        "its magnitudes are summed over the colours and cut off at a percentile (`cap`). With `cap=1` the numbers are "
        "equal.",
        "test_guided_backprop_is_the_same_up_to_its_heatmap",
    ),
    Deviation(
        GRAD_CAM,
        "guided backprop",
        "nn.ReLU modules are exchanged for others, so that functional ReLUs are not guided; afterwards one shared "
        "nn.ReLU, not in place, stands for all of the model's own.",
        "calls of a ReLU are guided, whatever makes them, and the model is left as it was.",
        "test_grad_cams_guided_backprop_exchanges_the_models_relus",
    ),
    Deviation(
        GRAD_CAM,
        "deep feature factorisation",
        "each channel's minimum is taken off before the factorisation, which starts from random numbers, and each "
        "concept's map is scaled into [0, 1] in each picture, so that a faint concept looks as strong as a clear one.",
        "`camtool.concepts` takes the positive part, starts from the points themselves, and scales a concept once for "
        "all pictures.",
        "test_grad_cams_factorisation_shifts_channels_and_scales_each_picture",
    ),
    Deviation(
        TORCHCAM,
        "LeGrad",
        "for a layer's own score its tokens, the class token among them, are averaged, whatever the model's own "
        "pooling; it takes torchvision's ViT alone, or other models with a score_projection.",
        "they are pooled as the model does it, for any model. With a score_projection that does so the maps are equal.",
        "test_torchcams_legrad_averages_the_tokens",
    ),
)
"""All known differences in result, in one place."""
