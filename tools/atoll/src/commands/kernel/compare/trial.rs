//! The launches to compare, from random kernels and from a corpus.

use crate::failure::{OrUserError, user_error};
use anyhow::{Context, Result, anyhow};
use atoll_ptx::Module;
use atoll_workbench::corpus::Case;
use atoll_workbench::random_kernel::{ENTRY, RandomKernel};
use atoll_workbench::{Inputs, Kernel, without_others};
use regex::Regex;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

/// Source of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Random,
    Corpus,
}

/// Selects kernels of a corpus: a regular expression that must match the whole name.
#[derive(Clone, Debug)]
pub(super) struct CaseFilter {
    text: String,
    whole: Regex,
}

impl FromStr for CaseFilter {
    type Err = regex::Error;

    fn from_str(text: &str) -> Result<CaseFilter, regex::Error> {
        // Compiled unchanged first, so that an error shows the user's text.
        Regex::new(text)?;
        Ok(CaseFilter { text: text.to_owned(), whole: Regex::new(&format!("^(?:{text})$"))? })
    }
}

/// A kernel with all of its launches.
pub(super) enum Task<'a> {
    /// The random kernel of a seed.
    Random(u64),
    /// A kernel of the corpus, compiled by one compiler.
    Case { case: &'a Case, ptx: &'a Path },
}

/// One launch.
pub(super) struct Trial {
    pub(super) name: String,
    module: Module,
    entry: String,
    pub(super) inputs: Inputs,
}

/// All random kernels, followed by the selected cases (all if `wanted` is empty).
pub(super) fn tasks<'a>(seeds: Range<u64>, cases: &'a [Case], wanted: &[CaseFilter]) -> Result<Vec<Task<'a>>> {
    if let Some(filter) = wanted.iter().find(|filter| !cases.iter().any(|case| filter.whole.is_match(&case.name))) {
        let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        return Err(user_error(format!("no case matches `{}`; the cases are {}", filter.text, names.join(", "))));
    }
    let cases =
        cases.iter().filter(|case| wanted.is_empty() || wanted.iter().any(|filter| filter.whole.is_match(&case.name)));
    let kernels = cases.flat_map(|case| case.ptx.iter().map(move |ptx| Task::Case { case, ptx }));
    Ok(seeds.map(Task::Random).chain(kernels).collect())
}

impl Task<'_> {
    pub(super) fn group(&self) -> Group {
        match self {
            Task::Random(_) => Group::Random,
            Task::Case { .. } => Group::Corpus,
        }
    }

    /// Number of launches.
    pub(super) fn launches(&self) -> usize {
        match self {
            Task::Random(_) => 1,
            Task::Case { case, .. } => case.launches.len(),
        }
    }

    /// The flags that select only this task.
    pub(super) fn replay(&self, corpus: Option<&Path>) -> String {
        match self {
            Task::Random(seed) => format!("--random {seed}"),
            Task::Case { case, .. } => {
                format!("--corpus {} --case {}", corpus.unwrap_or(Path::new(".")).display(), case.name)
            }
        }
    }

    /// Its launches.
    pub(super) fn trials(&self) -> Result<Vec<Trial>> {
        match self {
            Task::Random(seed) => Ok(vec![Trial::random(&RandomKernel::new(*seed))?]),
            Task::Case { case, ptx } => {
                let (path, file) = (ptx.display(), ptx.file_name().unwrap_or_default().to_string_lossy());
                let text = std::fs::read_to_string(ptx).with_context(|| path.to_string()).or_user_error()?;
                let module = atoll_ptx::parse(&text).map_err(|error| user_error(format!("{path}:{error}")))?;
                let module = without_others(&module, &case.name);
                let launches = (0..case.launches.len()).map(|launch| {
                    let inputs = case.inputs(launch).or_user_error()?;
                    let name =
                        format!("{} ({file}, grid {:?}, block {:?})", case.name, inputs.launch.grid, inputs.block);
                    Ok(Trial { name, module: module.clone(), entry: case.name.clone(), inputs })
                });
                launches.collect()
            }
        }
    }
}

impl Trial {
    /// The launch of a random kernel.
    pub(super) fn random(random: &RandomKernel) -> Result<Trial> {
        let name = format!("random kernel {}", random.seed);
        let module = atoll_ptx::parse(&random.ptx()).map_err(|error| anyhow!("{name}: {error}"))?;
        Ok(Trial { name, module, entry: ENTRY.to_owned(), inputs: random.inputs() })
    }

    pub(super) fn kernel(&self) -> Kernel<'_> {
        Kernel { module: &self.module, entry: &self.entry, report: None, block: self.inputs.block }
    }
}
