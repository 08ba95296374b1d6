//! compiler/codegen
