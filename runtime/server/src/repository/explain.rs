//! Says what the daemon reads of the folder of a model.

use super::Repository;
use super::scan;
use super::settings;
use atoll_protocol::ModelExplanation;
use std::io;

impl Repository {
    /// What the daemon reads of a model as it lies in the folder now; `None` if there is no such
    /// model.
    ///
    /// # Errors
    /// If the folder of the repository cannot be read.
    pub(crate) fn explain(&self, name: &str) -> io::Result<Option<ModelExplanation>> {
        let Some(source) = self.scan()?.into_iter().find(|source| source.name == name) else {
            let explained = |problem| ModelExplanation { name: name.into(), problem, ..ModelExplanation::default() };
            return Ok(scan::why_skipped(&self.folder, name).map(explained));
        };
        let found: Vec<u64> = source.versions.iter().map(|version| version.number).collect();
        let mut explanation = ModelExplanation {
            name: name.into(),
            settings: settings::file(&source).map(|path| path.display().to_string()).unwrap_or_default(),
            versions: found.clone(),
            skipped: source.skipped.clone(),
            ..ModelExplanation::default()
        };
        match settings::read(&source) {
            Ok(settings) => {
                explanation.version_policy = settings.version_policy.to_string();
                match settings.version_policy.choose(found.into_iter()) {
                    Ok(served) => explanation.served = served.into_iter().rev().collect(),
                    Err(missing) => {
                        let missing: Vec<String> = missing.iter().map(u64::to_string).collect();
                        explanation.problem =
                            format!("the policy wants version {}, which is missing", missing.join(", "));
                    }
                }
                explanation.fields = settings.notes;
            }
            Err(error) => explanation.problem = error.to_string(),
        }
        if explanation.problem.is_empty()
            && let Err(error) = self.called_by(&source)
        {
            explanation.problem = error.to_string();
        }
        Ok(Some(explanation))
    }
}
