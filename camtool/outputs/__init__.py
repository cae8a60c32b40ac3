"""Model outputs: class scores, score planes and detections, in any structure that models return.

Three kinds of outputs are supported:

* **class scores** ``(N, K)``: of classes, of independent labels, or the values of a regression
  (:mod:`camtool.outputs.class_scores`);
* **score planes** ``(N, K, *size)``: a score of each class at each position, as in semantic segmentation
  (:mod:`camtool.outputs.class_scores`);
* **detections**: boxes, each with a class and a confidence (:mod:`camtool.outputs.detections`).

:mod:`camtool.outputs.predictions` splits an output by image. :mod:`camtool.outputs.class_scores` lists the names
under which models return these tensors. Add the field names of a new model family there.
"""
