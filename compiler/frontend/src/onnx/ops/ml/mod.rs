//! Operators of the domain `ai.onnx.ml` on numbers and strings. Maps are not supported.

mod coupling;
mod features;
mod forest;
mod labels;
mod linear;
mod operands;
mod scores;
mod svm;
mod trees;

pub(super) use features::{
    array_feature_extractor, binarizer, feature_vectorizer, imputer, normalizer, one_hot_encoder, scaler, zip_map,
};
pub(super) use labels::{category_mapper, label_encoder};
pub(super) use linear::{linear_classifier, linear_regressor};
pub(super) use svm::{svm_classifier, svm_regressor};
pub(super) use trees::{tree_ensemble, tree_ensemble_classifier, tree_ensemble_regressor};
