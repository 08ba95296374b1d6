//! The pages of `docs/reference/`, generated from the tables and types that the programs use.
//!
//! A page has a part written by hand, then a line that begins with [`MARKER`], then the generated
//! part. `ATOLL_BLESS=1` writes the generated parts. The pages are the golden files of the names
//! that users rely on: flags, routes, settings, metrics and JSON fields. A name that is renamed or
//! removed is listed in `CHANGELOG.md`.

mod bounds;
mod clients;
mod outputs;
mod samples;
mod types;

use anyhow::{Context, Result, ensure};
use atoll_server::{RoutePort, config_fields, routes};
use atoll_tests::source::text_files;
use atoll_tests::{program, root};
use regex::Regex;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;
use types::Types;

/// Begins the line above the generated part of a page.
const MARKER: &str = "<!-- Generated below this line";

/// Compares a page with what is generated, or writes it.
fn hold(name: &str, title: &str, generated: &str) -> Result<()> {
    let path = root().join("docs/reference").join(name);
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let by_hand = match committed.split_once(MARKER) {
        Some((by_hand, _)) => by_hand.to_owned(),
        None => format!("# {title}\n\n"),
    };
    let marker = format!("{MARKER}; `ATOLL_BLESS=1 cargo test -p atoll-tests reference` writes it. -->");
    let text = format!("{by_hand}{marker}\n\n{}\n", generated.trim());
    if std::env::var_os("ATOLL_BLESS").is_some_and(|value| value == "1") {
        return std::fs::write(&path, text).with_context(|| path.display().to_string());
    }
    let is_in = |lines: &str, line: &str| lines.lines().any(|other| other == line);
    let gone = committed.lines().filter(|line| !is_in(&text, line)).map(|line| format!("- {line}\n"));
    let new = text.lines().filter(|line| !is_in(&committed, line)).map(|line| format!("+ {line}\n"));
    ensure!(
        committed == text,
        "{} is stale; ATOLL_BLESS=1 writes it. List renamed and removed names in CHANGELOG.md.\n{}",
        path.display(),
        gone.chain(new).collect::<String>()
    );
    Ok(())
}

#[test]
fn command_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let output = Command::new(program("atoll"))
        .args(["man", "--markdown"])
        .arg(folder.path())
        .output()
        .context("the program is not built; run cargo build -p atoll")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(folder.path().join("command-line.md"))?;
    let (_, sections) = page.split_once("\n## ").context("a section")?;
    hold("command-line.md", "Command line", &format!("## {sections}"))
}

#[test]
fn manual_pages_exist_for_all_commands() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let output = Command::new(program("atoll")).arg("man").arg(folder.path()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in ["atoll.1", "atoll-serve.1", "atoll-fn-deploy.1", "atoll-bench.1"] {
        let page = std::fs::read_to_string(folder.path().join(name)).with_context(|| name.to_owned())?;
        ensure!(page.contains(".SH NAME"), "{name} is no manual page: {page}");
    }
    Ok(())
}

#[test]
fn settings() -> Result<()> {
    let files = ["generation.rs", "repository/settings.rs", "repository/scaling.rs"];
    let files = files.map(|file| format!("runtime/server/src/{file}"));
    let model = Types::read(&files.each_ref().map(String::as_str))?.page(&["Settings", "DynamicBatching"])?;
    let daemon =
        Types::read(&["runtime/server/src/identity/configuration.rs"])?.page(&["ConfigurationFile", "Section"])?;
    let mut fields = String::from("## Fields of config.pbtxt\n\n");
    writeln!(fields, "| field | honoured | what becomes of it |\n| --- | --- | --- |")?;
    for (path, treatment, note) in config_fields() {
        writeln!(fields, "| `{path}` | {} | {note} |", treatment.label())?;
    }
    hold("settings.md", "Settings files", &format!("{model}\n{daemon}\n{fields}"))
}

#[test]
fn manifest() -> Result<()> {
    let types = Types::read(&["compiler/pipeline/src/pack/manifest.rs"])?;
    hold("manifest.md", "Manifest of `atoll pack`", &types.page(&["Manifest"])?)
}

#[test]
fn bundle() -> Result<()> {
    let files = text_files(&[".rs"])?;
    let folder = |file: &&atoll_tests::source::TextFile| file.path.starts_with("compiler/kgraph/src/");
    let paths: Vec<&str> = files.iter().filter(folder).map(|file| file.path.as_str()).collect();
    let types = Types::read(&paths)?;
    let page = types.page(&["Manifest", "KernelGraph", "TargetImage"])?;
    hold("bundle.md", "Bundle format (`.kg`), version 2", &page)?;
    let source = std::fs::read_to_string(root().join("compiler/kgraph/src/bundle/manifest.rs"))?;
    let page = std::fs::read_to_string(root().join("docs/reference/bundle.md"))?;
    for member in Regex::new(r#"const [A-Z_]+: &str = "([^"]+)""#)?.captures_iter(&source) {
        ensure!(page.contains(&member[1]), "docs/reference/bundle.md does not name the member `{}`", &member[1]);
    }
    Ok(())
}

#[test]
fn http() -> Result<()> {
    let mut text = String::from("## Routes\n\n| method | path | port | what it does |\n| --- | --- | --- | --- |\n");
    for route in routes() {
        let port = match route.port {
            RoutePort::Http => "inference",
            RoutePort::Metrics => "metrics",
            RoutePort::Both => "both",
        };
        writeln!(text, "| {} | `{}` | {port} | {} |", route.methods, route.path, route.about)?;
    }
    hold("http.md", "HTTP", &text)?;
    let page = std::fs::read_to_string(root().join("docs/reference/http.md"))?;
    for name in parameters()? {
        ensure!(page.contains(&format!("`{name}`")), "docs/reference/http.md: the parameter `{name}` is not described");
    }
    Ok(())
}

#[test]
fn grpc() -> Result<()> {
    let proto = std::fs::read_to_string(root().join("runtime/server/proto/inference.proto"))?;
    let mut text = String::from("## RPCs\n\n| RPC | what it does |\n| --- | --- |\n");
    let rpc = Regex::new(r"(?m)^  // (.*)\n  rpc (\w+)\(")?;
    let count = proto.matches("\n  rpc ").count();
    let described: Vec<_> = rpc.captures_iter(&proto).collect();
    ensure!(described.len() == count, "inference.proto: each of the {count} RPCs needs a comment of one line");
    for described in described {
        writeln!(text, "| `{}` | {} |", &described[2], &described[1])?;
    }
    hold("grpc.md", "gRPC", &text)
}

/// The parameters of requests, tensors and outputs that the daemon reads or writes.
fn parameters() -> Result<BTreeSet<String>> {
    let access = Regex::new(r#"parameters\s*\.(?:unsigned|boolean|text|get|set)\("([a-z_]+)""#)?;
    let mut names = BTreeSet::new();
    for file in text_files(&[".rs"])? {
        if file.path.starts_with("runtime/server/src/") || file.path.starts_with("runtime/protocol/src/infer/") {
            let (code, _) = file.text.split_once("#[cfg(test)]").unwrap_or((&file.text, ""));
            names.extend(access.captures_iter(code).map(|found| found[1].to_owned()));
        }
    }
    ensure!(names.len() > 8, "the parameters are read otherwise than this test expects: {names:?}");
    Ok(names)
}

#[test]
fn control_protocol() -> Result<()> {
    let source = [
        "message",
        "deferred",
        "objects",
        "graph",
        "functions",
        "instances",
        "leases",
        "devices",
        "cuda_sessions",
        "refusal",
        "ring",
        "status",
        "usage",
        "trace",
        "blob",
    ];
    let paths = source.map(|name| format!("runtime/control/src/{name}.rs"));
    let types = Types::read(&paths.each_ref().map(String::as_str))?;
    hold("control-protocol.md", "Control protocol", &types.page(&["Request", "Answer"])?)
}

#[test]
fn limits() -> Result<()> {
    hold("limits.md", "Limits", &bounds::page()?)
}

#[test]
fn metrics() -> Result<()> {
    hold("metrics.md", "Metrics", &samples::metrics()?)
}

#[test]
fn json() -> Result<()> {
    hold("json.md", "JSON outputs", &outputs::page()?)
}

#[test]
fn every_page_is_in_the_table_of_contents() -> Result<()> {
    let contents = std::fs::read_to_string(root().join("docs/SUMMARY.md")).context("docs/SUMMARY.md")?;
    // Pages that `atoll bench --save` wrote; BENCHMARKS.md describes them.
    let saved = Regex::new(r"^benchmarks/\d{4}-\d\d-\d\d(-[0-9a-f]+)?\.md$")?;
    for page in text_files(&[".md"])?.iter().filter_map(|file| file.path.strip_prefix("docs/")) {
        let is_listed = page == "SUMMARY.md" || contents.contains(&format!("({page})")) || saved.is_match(page);
        ensure!(is_listed, "docs/{page} is not in docs/SUMMARY.md");
    }
    Ok(())
}
