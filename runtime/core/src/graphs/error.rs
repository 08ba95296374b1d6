//! Errors of graph descriptions and cost tables.

use super::limits::{
    ASSIGNMENTS_MAX, BATCH_MAX, DEADLINE_NS_MAX, KINDS_MAX, NAME_BYTES_MAX, PARTIALS_MAX, STAGES_MAX, TENSORS_MAX,
};
use std::fmt;

/// Why a graph or its cost table is rejected.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the texts of `Display` explain each field")]
pub enum GraphError {
    NoStages,
    TooManyStages(usize),
    TooManyTensors { of: String, count: usize },
    BadName { what: &'static str, name: String },
    Duplicate { what: &'static str, name: String, of: String },
    Cycle(Vec<String>),
    LaterStage { stage: String, source: String },
    MissingStage { at: String, source: String },
    MissingOutput { at: String, stage: String, output: String, known: String },
    MissingInput { at: String, input: String, known: String },
    NoSource { stage: String, input: String },
    UnknownTensor { at: String, name: String, known: String },
    Mismatch { at: String, source: String, has: String, wants: String, fits: Option<String> },
    BadThreshold { stage: String, threshold: f64 },
    NotAScalar { stage: String, source: String, form: String },
    NoSubstitute { stage: String, output: String, used_by: String },
    NeedlessSubstitute { stage: String },
    Unused { stage: String },
    NoOutputs,
    ZeroDeadline,
    LongDeadline(u64),
    BadBatch { stage: String, batch: u32 },
    NoKinds,
    OtherKinds,
    TooManyKinds(usize),
    Rows { rows: usize, stages: usize },
    Columns { stage: String, columns: usize, kinds: usize },
    NowhereToRun { stage: String },
    GpuCostOfCpuStage { stage: String, kind: String },
    ZeroTime { stage: String, kind: String },
    CostOverflow { stage: String },
    TooManyAssignments { stages: usize, kinds: usize },
    TooComplex,
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use GraphError as E;
        match self {
            E::NoStages => write!(f, "the graph has no stages"),
            E::TooManyStages(count) => write!(f, "the graph has {count} stages; the limit is {STAGES_MAX}"),
            E::TooManyTensors { of, count } => write!(f, "{of} has {count} tensors; the limit is {TENSORS_MAX}"),
            E::BadName { what, name } => write!(
                f,
                "`{name}` is not a valid name of {what}; names have 1 to {NAME_BYTES_MAX} bytes, no control \
                 characters, and no `.` if they name a stage"
            ),
            E::Duplicate { what, name, of } => write!(f, "{of} has two {what} named `{name}`"),
            E::Cycle(stages) => write!(f, "stages form a cycle: {}", stages.join(" needs ")),
            E::LaterStage { stage, source } => write!(
                f,
                "stage `{stage}` takes an output of `{source}`, which is listed after it; list `{source}` first"
            ),
            E::MissingStage { at, source } => write!(f, "{at} names stage `{source}`, which the graph does not have"),
            E::MissingOutput { at, stage, output, known } => {
                write!(f, "{at} names output `{output}` of stage `{stage}`, which has {known}")
            }
            E::MissingInput { at, input, known } => {
                write!(f, "{at} names input `{input}` of the graph, which has {known}")
            }
            E::NoSource { stage, input } => write!(f, "stage `{stage}` states no source for its input `{input}`"),
            E::UnknownTensor { at, name, known } => write!(f, "{at} names `{name}`; the function has {known}"),
            E::Mismatch { at, source, has, wants, fits } => {
                write!(f, "{at} wants {wants}, but {source} is {has}")?;
                fits.as_ref().map_or(Ok(()), |other| write!(f, ", which fits {other} only"))
            }
            E::BadThreshold { stage, threshold } => {
                write!(f, "the condition of stage `{stage}` compares with {threshold}; use a finite number")
            }
            E::NotAScalar { stage, source, form } => write!(
                f,
                "the condition of stage `{stage}` is on {source}, which is {form}; use a number, a tensor of one \
                 element"
            ),
            E::NoSubstitute { stage, output, used_by } => write!(
                f,
                "stage `{stage}` may be skipped, but {used_by} uses its output `{output}`; state a substitute in \
                 `otherwise`"
            ),
            E::NeedlessSubstitute { stage } => {
                write!(f, "stage `{stage}` always runs, so `otherwise` has no effect; add a condition, or remove it")
            }
            E::Unused { stage } => write!(f, "no output of stage `{stage}` is used; remove the stage"),
            E::NoOutputs => write!(f, "the graph has no outputs"),
            E::ZeroDeadline => write!(f, "the deadline of the graph is 0; state a time above 0, or none"),
            E::LongDeadline(ns) => write!(f, "the deadline of {ns} ns is above the limit of {DEADLINE_NS_MAX} ns"),
            E::BadBatch { stage, batch } => {
                write!(f, "stage `{stage}` has batches of {batch}; the limit is {BATCH_MAX}")
            }
            E::NoKinds => write!(f, "the table of costs has no kinds of devices"),
            E::OtherKinds => write!(f, "the table of costs is for other kinds of devices than the cluster has"),
            E::TooManyKinds(kinds) => write!(f, "{kinds} kinds of devices are too many; the limit is {KINDS_MAX}"),
            E::Rows { rows, stages } => write!(f, "the table of costs has {rows} rows for {stages} stages"),
            E::Columns { stage, columns, kinds } => {
                write!(f, "the costs of stage `{stage}` are for {columns} kinds of devices; there are {kinds}")
            }
            E::NowhereToRun { stage } => write!(f, "no kind of device can run stage `{stage}`"),
            E::GpuCostOfCpuStage { stage, kind } => {
                write!(f, "stage `{stage}` runs on CPUs only, but has a cost on `{kind}`")
            }
            E::ZeroTime { stage, kind } => write!(f, "the measured time of stage `{stage}` on `{kind}` is 0"),
            E::CostOverflow { stage } => write!(f, "times or prices up to stage `{stage}` overflow"),
            E::TooManyAssignments { stages, kinds } => write!(
                f,
                "{stages} stages on {kinds} kinds of devices have more than {ASSIGNMENTS_MAX} assignments; split the \
                 graph, or name fewer kinds per stage"
            ),
            E::TooComplex => write!(
                f,
                "more than {PARTIALS_MAX} partial assignments are optimal; split the graph, or name fewer kinds per \
                 stage"
            ),
        }
    }
}

impl std::error::Error for GraphError {}
