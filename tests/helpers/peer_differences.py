"""Differences between camtool and two other libraries, grad-cam and torchcam, and the test that shows each.

The list has no imports from ``test_peer_differences.py``, so it can be read if neither library is installed.
"""

from __future__ import annotations

from dataclasses import dataclass

GRAD_CAM, TORCHCAM = "grad-cam 1.5.7", "torchcam 0.5.0"
BOTH = f"{GRAD_CAM}, {TORCHCAM}"


@dataclass(frozen=True)
class PeerDifference:
    """A difference between camtool and another library.

    Attributes:
        peer: The library, or both.
        methods: The methods, by the names that the libraries use.
        theirs: What the library does.
        ours: What camtool does.
        test: The test in ``test_peer_differences.py`` that reproduces the library's numbers by this difference.
    """

    peer: str
    methods: str
    theirs: str
    ours: str
    test: str


PEER_DIFFERENCES = (
    PeerDifference(
        BOTH,
        "all",
        "The map is rectified, its lowest value is subtracted, and it is divided by its peak + 1e-7 (torchcam: 1e-8); "
        "grad-cam then resizes it and scales it again.",
        "`Explanation.raw` is not changed; a heatmap is resized, then scaled once.",
        "test_heatmap_equals_grad_cam",
    ),
    PeerDifference(
        BOTH,
        "all, at a layer with an in-place ReLU behind it (densenet121 `features`, vgg11 `features.18`)",
        "The stored activations are an alias, which the ReLU overwrites: A becomes relu(A). torchcam's gradient is "
        "then also that of relu(A); grad-cam pairs the gradient of A with the values of relu(A).",
        "The layer passes on a clone, so A is what the layer returned. Compared at layers that no ReLU overwrites. "
        "For CAM on DenseNet the overwritten value is right, as the model pools relu(A): there the maps are equal.",
        "test_in_place_relu_after_the_layer_overwrites_the_stored_activations",
    ),
    PeerDifference(
        GRAD_CAM,
        "all, at several layers",
        "Maps are scaled to [0, 1], resized to the image's size one by one, and averaged there.",
        'merge="mean" divides each map by its peak and averages on the finest grid of the layers.',
        "test_grad_cam_averages_layers_at_the_images_size",
    ),
    PeerDifference(
        TORCHCAM,
        "all, at several layers",
        "Maps are scaled to [0, 1] by their extremes and resized, and their maximum is taken.",
        'merge="max" divides each map by its peak instead, so a map without zeros keeps its lowest values.',
        "test_torchcam_shifts_maps_to_zero_before_the_maximum",
    ),
    PeerDifference(
        TORCHCAM,
        "CAM",
        "The head is assumed to be linear behind the pooling if the model has exactly one nn.Linear.",
        "The head must reproduce the model's own output; otherwise a MethodError is raised.",
        "test_torchcam_computes_cam_for_a_head_without_mean_pooling",
    ),
    PeerDifference(
        GRAD_CAM,
        "Grad-CAM++",
        "1e-6 is added to the denominator 2 g² + g³ Σ A: where g is below about 1e-3, this constant decides, not "
        "the equation.",
        "g² is canceled first, so no constant is needed. Compared at 10⁴ times the logit, where 1e-6 is negligible.",
        "test_grad_cams_constant_dominates_gradcam_plus_plus_for_small_gradients",
    ),
    PeerDifference(
        GRAD_CAM,
        "Grad-CAM++",
        "Σ A takes negative activations too: at layers without a ReLU the denominator may be negative, and so the "
        "weight of a channel that speaks for the class.",
        "Σ |A| is taken, which is Σ A where activations are behind a ReLU, as in the paper. Compared at such layers.",
        "test_grad_cams_gradcam_plus_plus_weighs_by_negative_activations",
    ),
    PeerDifference(
        TORCHCAM,
        "Grad-CAM++",
        "alpha is divided in place on a copy made by indexing, so the division is lost and w = Σ relu(g)³.",
        "Eq. 19 is computed; the maps are not compared.",
        "test_torchcams_gradcam_plus_plus_sums_cubes",
    ),
    PeerDifference(
        TORCHCAM,
        "Smooth Grad-CAM++",
        "alpha is computed from all noisy copies but weighs the gradient of the last one, and the map sums the "
        "activations of the last one. The noise has a standard deviation of 0.3 in the input's own units, from "
        "torch's global generator, and Σ A D3 sums the product of both over the positions.",
        "The mean gradient is weighed, and the activations of the image itself are summed; alpha uses D3 Σ A; the "
        "noise is relative to the image's range, with its own seed.",
        "test_torchcams_smooth_gradcam_plus_plus_uses_the_last_noisy_image",
    ),
    PeerDifference(
        BOTH,
        "XGrad-CAM",
        "1e-7 and 1e-8 are added to Σ A, regardless of its sign and size.",
        "A channel that sums to rounding noise gets no weight; the others are divided by Σ A itself.",
        "test_constants_of_both_dominate_xgradcam_for_small_channel_sums",
    ),
    PeerDifference(
        TORCHCAM,
        "LayerCAM, at several layers",
        "tanh(2 M) is applied to the map of every layer, also the deepest, before the maps are resized and merged.",
        'merge="layercam" leaves the deepest layer unscaled, as the paper does, and resizes first.',
        "test_torchcam_also_raises_the_deepest_layer",
    ),
    PeerDifference(
        GRAD_CAM,
        "Eigen-CAM, EigenGradCAM, eigen_smooth",
        "Each channel's mean is subtracted before the decomposition, which the paper does not do.",
        "The features are not centered.",
        "test_grad_cam_centers_the_features_of_eigen_methods",
    ),
    PeerDifference(
        GRAD_CAM,
        "Eigen-CAM, EigenGradCAM, eigen_smooth",
        "The sign is arbitrary, as the decomposition returns it. If it is negative, the map is inverted and its "
        "strongest values are cut off.",
        "The sign is chosen so that the map correlates with the energy, the sum of squares, of the decomposed "
        "features.",
        "test_grad_cams_eigen_maps_have_an_arbitrary_sign",
    ),
    PeerDifference(
        GRAD_CAM,
        "Seg-Eigen-CAM",
        "Each channel's mean is subtracted before the decomposition.",
        "The features are not centered, as in Eigen-CAM, which the paper extends. The rule for the sign is the same.",
        "test_grad_cam_centers_seg_eigen_cam",
    ),
    PeerDifference(
        GRAD_CAM,
        "KPCA-CAM",
        "The sign is scikit-learn's: the value with the largest magnitude is positive.",
        "The sign is chosen so that the map correlates with the energy Σ A² of the activations. The maps are "
        "otherwise equal.",
        "test_grad_cams_kpca_cam_makes_its_largest_value_positive",
    ),
    PeerDifference(
        GRAD_CAM,
        "FEM",
        "A channel's weight is the fraction of positions more than two standard deviations above its mean, and it "
        "multiplies the whole channel.",
        "As in the paper, the mean of the channel is added at those positions only.",
        "test_grad_cams_fem_weighs_by_the_fraction_of_strong_positions",
    ),
    PeerDifference(
        GRAD_CAM,
        "random",
        "The weights come from numpy's global generator: they differ for each image and each call.",
        "The weights have their own seed and are the same for every image and call.",
        "test_grad_cams_random_weights_come_from_numpy",
    ),
    PeerDifference(
        GRAD_CAM,
        "Score-CAM",
        "Channels are resized to the image's size with aligned corners.",
        "Maps are resized between the centers of cells, as everywhere in camtool. Without resizing the maps are equal.",
        "test_grad_cam_aligns_the_corners_of_score_cam_masks",
    ),
    PeerDifference(
        TORCHCAM,
        "Score-CAM",
        "Channels are scaled to [0, 1] before they are resized, so masks seldom reach 1.",
        "They are scaled after resizing, as in the paper; with `scale_first=True` they are scaled first, and the "
        "maps are equal.",
        "test_torchcam_scales_score_cam_masks_before_resizing",
    ),
    PeerDifference(
        TORCHCAM,
        "SS-CAM",
        "Noise with a standard deviation of 2 is added to masks that are already in [0, 1], pixel by pixel, from "
        "torch's global generator; the masks are not scaled again.",
        "Noise is added to the activations, which are then resized and scaled; all channels share the noise, and "
        "it has a seed.",
        "test_torchcams_sscam_adds_noise_to_scaled_masks",
    ),
    PeerDifference(
        TORCHCAM,
        "IS-CAM",
        "Step i of n shows the mask (1 + 2 + ... + i) / n times: of 10 steps the last is 5.5 times too bright.",
        "Step i shows i / n of the mask, and the last step the mask itself.",
        "test_torchcams_iscam_sums_its_steps",
    ),
    PeerDifference(
        GRAD_CAM,
        "Ablation-CAM, at a layer whose smallest value is not 0",
        "A channel is not set to zero but to the smallest value minus 1e7, and the smallest value is that of all "
        "variants in the batch: the i-th of a batch gets i times 1e7, so the map depends on the batch size.",
        "A channel is set to zero at any layer, and its weight has the sign of Σ A. Compared behind a ReLU, where "
        "grad-cam does so too.",
        "test_grad_cams_ablation_depends_on_the_batch_size",
    ),
    PeerDifference(
        GRAD_CAM,
        "Ablation-CAM, of a negative score",
        "The drop is divided by the score itself, so the map shows what speaks against the target.",
        "The drop is divided by the magnitude of the score.",
        "test_grad_cams_ablation_of_a_negative_score_is_inverted",
    ),
    PeerDifference(
        GRAD_CAM,
        "FullGrad",
        "Every channel of every layer is scaled to [0, 1] by itself, also every color channel of the image, so a "
        "channel with a negligible contribution counts as much as the strongest.",
        "The channels of a layer are scaled together, as in the authors' code.",
        "test_grad_cams_fullgrad_scales_each_channel_separately",
    ),
    PeerDifference(
        GRAD_CAM,
        "FullGrad",
        "Only layers whose type is exactly Conv2d or BatchNorm2d count; other norms, other convolutions and "
        "subclasses are left out.",
        "Every call of a convolution or a norm counts, by any module.",
        "test_grad_cams_fullgrad_leaves_out_other_norms",
    ),
    PeerDifference(
        GRAD_CAM,
        "Finer-CAM",
        "The gradient also flows through the probabilities that weigh the rival classes.",
        "The weights of the rival classes are computed once and held constant, so the map explains only "
        "differences of logits. The scores are equal.",
        "test_grad_cams_finer_cam_has_gradients_through_the_rival_weights",
    ),
    PeerDifference(
        BOTH,
        "Finer-CAM",
        "The rival classes are those whose logits on the image are nearest to the logit of the class: on a photo "
        "of dogs, a cat is compared with dogs.",
        "They are the classes whose weights in the model's head are most similar to the weights of the class, as "
        "in the paper; nearest logits are used for models without a linear head.",
        "test_both_choose_finer_cam_rivals_by_nearest_logits",
    ),
    PeerDifference(
        TORCHCAM,
        "Finer-CAM",
        "The rival classes count equally, with 0.6 of their mean.",
        'By default they count by their probabilities, and in full, as in the authors\' code; with weighting="mean" '
        "and weight=0.6, as in torchcam, the maps are equal.",
        "test_torchcams_finer_cam_is_equal_with_options",
    ),
    PeerDifference(
        GRAD_CAM,
        "RefineCAM",
        "The maps are multiplied at the image's size.",
        'merge="refinecam" multiplies them on the finest grid of the layers.',
        "test_grad_cams_refine_cam_multiplies_at_the_images_size",
    ),
    PeerDifference(
        GRAD_CAM,
        "RefineCAM, eigen_smooth=True",
        "The option is passed on by position, where the base method expects aug_smooth: the wrong smoothing is "
        "applied.",
        "`eigen:` and `tta:` are prefixes of a method's name, for one layer or several.",
        "test_grad_cams_refine_cam_swaps_the_smoothing_options",
    ),
    PeerDifference(
        TORCHCAM,
        "RefineCAM",
        "The base method is by default torchcam's own Grad-CAM++, with the error described above.",
        'merge="refinecam" merges correct maps. From the same maps, both compute the same map up to a factor.',
        "test_torchcams_refine_cam_uses_its_own_gradcam_plus_plus",
    ),
    PeerDifference(
        GRAD_CAM,
        "SESS",
        "Each window's map is scaled again after resizing, windows are square, twelve scales are the default, and "
        "the result is blurred (11 x 11 pixels, standard deviation 5).",
        "A window's map is scaled once, windows have the shape of the image, three scales are the default, and "
        "nothing is blurred.",
        "test_grad_cams_sess_scales_twice_and_blurs",
    ),
    PeerDifference(
        GRAD_CAM,
        "aug_smooth",
        "The model's input values are multiplied by 0.9 and 1.1, which changes the contrast around the mean color, "
        "not the brightness. Maps are scaled to [0, 1] before they are averaged; the mean is not scaled again.",
        "`tta:` changes the brightness relative to black if black is known, and averages the maps unscaled.",
        "test_grad_cams_aug_smooth_multiplies_normalized_values",
    ),
    PeerDifference(
        GRAD_CAM,
        "guided backprop",
        "Returns the gradient with its color channels and signs, for the first image only; the user makes a "
        "heatmap of it.",
        "Its magnitudes are summed over the color channels and clipped at a percentile (`cap`). With `cap=1` the "
        "values are equal.",
        "test_guided_backprop_is_equal_without_clipping",
    ),
    PeerDifference(
        GRAD_CAM,
        "guided backprop",
        "nn.ReLU modules are replaced, so functional ReLUs are not guided; afterwards one shared nn.ReLU, which is "
        "not in place, replaces all of the model's own.",
        "All calls of a ReLU are guided, also functional ones, and the model is not changed.",
        "test_grad_cams_guided_backprop_replaces_the_models_relus",
    ),
    PeerDifference(
        GRAD_CAM,
        "deep feature factorization",
        "Each channel's minimum is subtracted before the factorization, which starts from random numbers, and each "
        "concept's map is scaled to [0, 1] in each image, so a faint concept looks as strong as a clear one.",
        "`camtool.concepts` uses the positive part, starts from the points themselves, and scales a concept once "
        "for all images.",
        "test_grad_cams_factorization_shifts_channels_and_scales_each_image",
    ),
    PeerDifference(
        TORCHCAM,
        "LeGrad",
        "For the score of a layer, all its tokens including the class token are averaged, whatever pooling the "
        "model has. It supports only torchvision's ViT, or other models with a score_projection.",
        "The tokens are pooled as the model pools them, for any model. With a matching score_projection the maps "
        "are equal.",
        "test_torchcams_legrad_averages_the_tokens",
    ),
)
"""All known differences in results; the second table of differences in ``camtool/methods/README.md``."""
