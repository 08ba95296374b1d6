//! compiler/pipeline
