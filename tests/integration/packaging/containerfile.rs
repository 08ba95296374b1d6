//! Reads container files and finds their faults.

use std::path::{Component, Path};

/// An instruction of a container file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    /// In capital letters.
    pub(super) name: String,
    /// The rest, on one line with single spaces.
    pub(super) arguments: String,
}

const KNOWN: [&str; 16] = [
    "ADD",
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "LABEL",
    "RUN",
    "SHELL",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
    "WORKDIR",
];

/// The instructions in order. Lines that end in a backslash go on; comments are left out.
pub(super) fn instructions(text: &str) -> Vec<Instruction> {
    let mut found = Vec::new();
    let mut open = String::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        match line.trim_end().strip_suffix('\\') {
            Some(part) => open += &format!("{part} "),
            None => {
                open += line;
                let words: Vec<&str> = open.split_whitespace().collect();
                if let [name, rest @ ..] = &words[..] {
                    found.push(Instruction { name: name.to_uppercase(), arguments: rest.join(" ") });
                }
                open.clear();
            }
        }
    }
    found
}

/// What is wrong with a container file whose context is the folder `context`; with `None`, sources
/// of `COPY` are not looked up.
pub(super) fn faults(text: &str, context: Option<&Path>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut stages: Vec<String> = Vec::new();
    let mut user = String::new();
    let all = instructions(text);
    if all.first().is_none_or(|first| first.name != "FROM") {
        faults.push("it does not begin with FROM".into());
    }
    for Instruction { name, arguments } in &all {
        let words: Vec<&str> = arguments.split(' ').collect();
        match name.as_str() {
            "FROM" => {
                user.clear();
                faults.extend(image_fault(words[0], &stages));
                if let Some(stage) = words.iter().skip_while(|word| !word.eq_ignore_ascii_case("as")).nth(1) {
                    stages.push((*stage).to_owned());
                }
            }
            "USER" => user.clone_from(arguments),
            "ADD" | "COPY" => {
                let options: Vec<&str> = words.iter().copied().take_while(|word| word.starts_with("--")).collect();
                let from = options.iter().find_map(|option| option.strip_prefix("--from="));
                match &words[options.len()..] {
                    [sources @ .., _] if !sources.is_empty() => match from {
                        Some(from) if stages.iter().any(|stage| stage == from) => {}
                        Some(from) => faults.push(format!("{name} {arguments}: no stage `{from}`")),
                        None => faults.extend(sources.iter().filter_map(|source| source_fault(source, context))),
                    },
                    _ => faults.push(format!("{name} {arguments}: it needs a source and a destination")),
                }
            }
            "ENTRYPOINT" | "CMD" if serde_json::from_str::<Vec<String>>(arguments).is_err() => {
                // A shell in between would receive the signals.
                faults.push(format!("{name} {arguments}: it has to be a list, as in [\"atoll\"]"));
            }
            known if KNOWN.contains(&known) => {}
            _ => faults.push(format!("{name}: an unknown instruction")),
        }
    }
    let owner = user.split(':').next().unwrap_or_default();
    if ["", "0", "root"].contains(&owner) {
        faults.push("the image runs as root".into());
    }
    faults
}

/// A base image is another stage, or an image of a registry with a version as its tag.
fn image_fault(image: &str, stages: &[String]) -> Option<String> {
    if stages.iter().any(|stage| stage == image) {
        return None;
    }
    let (name, tag) = match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => return Some(format!("the image {image} has no tag")),
    };
    if !name.split('/').next().is_some_and(|registry| registry.contains('.')) {
        return Some(format!("the image {image} names no registry"));
    }
    let is_version = tag.starts_with(|first: char| first.is_ascii_digit());
    (!is_version).then(|| format!("the tag of the image {image} is no version; `latest` changes"))
}

fn source_fault(source: &str, context: Option<&Path>) -> Option<String> {
    if source.contains("://") {
        return Some(format!("{source}: the instruction downloads a file that nothing checks"));
    }
    let context = context?;
    if Path::new(source).components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Some(format!("{source} is outside of the repository"));
    }
    (!context.join(source).exists()).then(|| format!("{source} is not in the repository"))
}
