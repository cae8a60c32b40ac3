"""The public names. This stub is their only list: type checkers and editors read it, and ``camtool.__getattr__`` does.

Each name has a line ``from HOME import NAME as NAME``. Lines from ``camtool`` itself name public packages.
"""

from camtool import errors as errors
from camtool import figures as figures
from camtool import hooks as hooks
from camtool import losses as losses
from camtool import maps as maps
from camtool import recorder as recorder
from camtool import rendering as rendering
from camtool import targets as targets
from camtool import testing as testing
from camtool.app.web_page.building import export_page as export_page
from camtool.attention_maps.attention import attention as attention
from camtool.attention_maps.bags import bag_attention as bag_attention
from camtool.attention_maps.maps import AttentionMaps as AttentionMaps
from camtool.attention_maps.maps import patch_similarity as patch_similarity
from camtool.attention_maps.words import WordAttention as WordAttention
from camtool.attention_maps.words import word_attention as word_attention
from camtool.concept_maps.concepts import Concepts as Concepts
from camtool.concept_maps.concepts import concepts as concepts
from camtool.engines.export import export as export
from camtool.errors import CamtoolError as CamtoolError
from camtool.errors import ForwardError as ForwardError
from camtool.errors import FunctionError as FunctionError
from camtool.errors import GeometryError as GeometryError
from camtool.errors import ImageError as ImageError
from camtool.errors import LayerError as LayerError
from camtool.errors import MethodError as MethodError
from camtool.errors import ModelError as ModelError
from camtool.errors import NothingFoundError as NothingFoundError
from camtool.errors import TargetError as TargetError
from camtool.evaluation.audit import Audit as Audit
from camtool.evaluation.audit import audit as audit
from camtool.evaluation.diff import CamDiff as CamDiff
from camtool.evaluation.diff import diff as diff
from camtool.evaluation.leaderboard import evaluate as evaluate
from camtool.evaluation.recommendation import recommend as recommend
from camtool.evaluation.watch import Watch as Watch
from camtool.evaluation.watch import watch as watch
from camtool.evidence.evidence import Evidence as Evidence
from camtool.explaining.ensembles import explain_ensemble as explain_ensemble
from camtool.explaining.explainer import Explainer as Explainer
from camtool.explaining.explainer import explain as explain
from camtool.explaining.explainer import predict as predict
from camtool.explaining.explanation import Explanation as Explanation
from camtool.explaining.layer_table import Candidates as Candidates
from camtool.explaining.layer_table import candidate_layers as candidate_layers
from camtool.explaining.observing import ObservedPass as ObservedPass
from camtool.explaining.observing import ObservedPasses as ObservedPasses
from camtool.explaining.observing import observe as observe
from camtool.explaining.policies import PolicyExplanation as PolicyExplanation
from camtool.explaining.policies import explain_policy as explain_policy
from camtool.explaining.refining import refine as refine
from camtool.explaining.written_answers import AnswerMaps as AnswerMaps
from camtool.explaining.written_answers import tokens as tokens
from camtool.figures.explanation_figures import Comparison as Comparison
from camtool.figures.explanation_figures import compare as compare
from camtool.inputs.formats.file_image import FileImage as FileImage
from camtool.inputs.image_files import open_image as open_image
from camtool.inputs.model_inputs import Inputs as Inputs
from camtool.methods import METHODS as METHODS
from camtool.methods import method as method
from camtool.models import Loaded as Loaded
from camtool.models import load as load
from camtool.models.preprocessing import preprocessing as preprocessing
from camtool.progress import show_progress as show_progress
from camtool.recorder import Record as Record
from camtool.recorder import Recorder as Recorder
from camtool.slides.explaining import explain_slide as explain_slide
from camtool.slides.slide_explanation import SlideExplanation as SlideExplanation
from camtool.videos.explaining import explain_video as explain_video
from camtool.videos.video_explanation import VideoExplanation as VideoExplanation

__version__: str
