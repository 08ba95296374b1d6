//! The CPU stages of a manifest: programs that run in a process of the tenant.

use super::files::Files;
use super::{ManifestStage, core_form};
use atoll_core::graphs::{Form, Size, TensorSpec};
use atoll_protocol::DataType;
use atoll_stages::{Form as StageForm, Program, Signature, WasmOptions};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;

/// The program of a stage.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProgramWork {
    pub(crate) program: Program,
    /// Its file; empty if it has none.
    pub(crate) file: Arc<Vec<u8>>,
    /// Its name in reports: that of the built-in program, or `wasm` and the name of the file.
    pub(crate) label: String,
    pub(crate) signature: Signature,
}

/// The built-in programs.
pub(super) const NAMES: [&str; 3] = ["decode_image", "resize_image", "tokenize"];

impl ManifestStage {
    /// The name of the file of its program.
    pub(super) fn file(&self) -> Option<&str> {
        let tokenizer = || self.options.as_ref()?.get("tokenizer")?.as_str();
        self.wasm.as_deref().or_else(|| tokenizer().filter(|_| self.builtin.as_deref() == Some("tokenize")))
    }
}

/// The program of a stage; `None` if the stage runs something else. `sources` are the inputs with
/// the forms of their sources, which are `None` if a source does not exist.
pub(super) fn program_of(
    stage: &ManifestStage,
    files: &Files,
    sources: &[(String, Option<Form>)],
) -> Result<Option<ProgramWork>, String> {
    let options = || stage.options.clone().unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    let program = match (stage.builtin.as_deref(), &stage.wasm) {
        (Some("decode_image"), None) => Program::DecodeImage(typed(options())?),
        (Some("resize_image"), None) => Program::ResizeImage(typed(options())?),
        (Some("tokenize"), None) => Program::Tokenize(typed(options())?),
        (None, Some(_)) => Program::Wasm(WasmOptions { outputs: stage.outputs.clone(), ..typed(options())? }),
        _ => return Ok(None),
    };
    if stage.k.is_some() {
        return Err("`k` belongs to the built-in `top_k`".into());
    }
    if stage.wasm.is_none() && !stage.outputs.is_empty() {
        return Err("`outputs` belong to stages with `wasm`".into());
    }
    program.check_options()?;
    let file = match stage.file() {
        None => Arc::default(),
        Some(name) => {
            let missing = || {
                format!(
                    "its file `{name}` did not come with the manifest; `atoll graph deploy` sends it if it is in \
                     the folder of the manifest"
                )
            };
            files.get(name).ok_or_else(missing)?.0.clone()
        }
    };
    // A source that does not exist is reported by the check of the graph.
    let given = sources.iter().map(|(name, form)| {
        let form = form.as_ref().map_or(StageForm { datatype: DataType::Uint8, shape: Vec::new() }, stage_form);
        (name.clone(), form)
    });
    let signature = program.signature(&given.collect::<Vec<_>>());
    let label = match &stage.wasm {
        Some(module) => format!("wasm {module}"),
        None => stage.builtin.clone().unwrap_or_default(),
    };
    Ok(Some(ProgramWork { program, file, label, signature }))
}

fn typed<T: DeserializeOwned>(options: Value) -> Result<T, String> {
    serde_json::from_value(options).map_err(|error| format!("`options`: {error}"))
}

fn stage_form(form: &Form) -> StageForm {
    let size = |size: &Size| match size {
        Size::Fixed(size) => i64::try_from(*size).unwrap_or(i64::MAX),
        Size::Any => -1,
    };
    // The names of elements are those of data types, so parsing succeeds.
    let datatype = form.element.parse().unwrap_or(DataType::Bytes);
    StageForm { datatype, shape: form.shape.iter().map(size).collect() }
}

/// Tensors of a signature as a graph describes them.
pub(super) fn specs(tensors: &[(String, StageForm)]) -> Vec<TensorSpec> {
    let spec = |(name, form): &(String, StageForm)| TensorSpec {
        name: name.clone(),
        form: core_form(form.datatype, &form.shape),
    };
    tensors.iter().map(spec).collect()
}
