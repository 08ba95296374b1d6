//! The commands of `README.md` and of the guide, run as they are written.
//!
//! A fenced block with the info string `console` is a transcript: lines that begin with `$ ` are
//! commands (`> ` continues one), the other lines are their output. Commands of a page run one
//! after the other in one shell, in an empty folder outside of the repository, with `atoll` on
//! `PATH`. Output has to match except for figures with their units; a line `...` stands for any
//! number of lines. A command that ends in `&` runs until the end of the page; the lines below it
//! are those that it prints first, and the next command waits for them.
//!
//! `console,full` runs with `ATOLL_TEST_FULL=1` only. `console,ignore=REASON` does not run. A block
//! of another language with `file=PATH`, as in `toml,file=models/magika.toml`, is that file.
//!
//! `ATOLL_BLESS=1` writes the output of commands into the pages where it differs.

use crate::serve::atoll;
use anyhow::{Context, Result, bail, ensure};
use atoll_tests::source::{TextFile, text_files};
use atoll_tests::{full, program, python, root, share_kernels, skip, trained_models};
use regex::Regex;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fmt::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the commands of a page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(300);
const FULL_PAGE_TIMEOUT: Duration = Duration::from_secs(1800);

/// How many seconds a command in the background may take to print what is written below it.
const BACKGROUND_SECONDS: u32 = 60;

/// A page whose commands need what another test installs, and which runs there.
const ELSEWHERE: &str = "docs/guide/python.md";

/// A step of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    /// The line of the page that it begins in, counted from 1.
    line: usize,
    kind: StepKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum StepKind {
    /// A command and the output that the page shows.
    Command { command: String, output: Vec<String> },
    /// A file with its contents.
    File { path: String, contents: String },
}

fn is_background(command: &str) -> bool {
    let command = command.trim_end();
    command.ends_with('&') && !command.ends_with("&&")
}

#[test]
fn commands_of_the_documents_run_as_written() -> Result<()> {
    let pages = text_files(&[".md"])?;
    let pages = pages.iter().filter(|page| page.path == "README.md" || page.path.starts_with("docs/guide/"));
    let pages = pages.filter(|page| page.path != ELSEWHERE);
    let mut failures = String::new();
    for page in pages {
        let steps = steps(page, full())?;
        if !steps.is_empty()
            && let Err(error) = run(page, &steps, None)
        {
            writeln!(failures, "{error:#}")?;
        }
    }
    ensure!(failures.is_empty(), "{failures}");
    Ok(())
}

/// Runs the commands of [`ELSEWHERE`], which may use the programs of a folder.
pub(crate) fn run_elsewhere(programs: &Path) -> Result<()> {
    let pages = text_files(&[".md"])?;
    let page = pages.iter().find(|page| page.path == ELSEWHERE).context(ELSEWHERE)?;
    run(page, &steps(page, full())?, Some(programs))
}

/// The commands of a page that are to run, and its files.
fn steps(page: &TextFile, with_full: bool) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut block = Block::None;
    for (index, text) in page.text.lines().enumerate() {
        let line = index + 1;
        let place = || format!("{}:{line}", page.path);
        if let Some(info) = text.strip_prefix("```") {
            block = match block {
                Block::None => opened(info, with_full, &place())?,
                _ => Block::None,
            };
            if let Block::File(path) = &block {
                steps.push(Step { line, kind: StepKind::File { path: path.clone(), contents: String::new() } });
            }
            continue;
        }
        match (&block, text.strip_prefix("$ "), steps.last_mut().map(|step| &mut step.kind)) {
            (Block::File(_), _, Some(StepKind::File { contents, .. })) => *contents += &format!("{text}\n"),
            (Block::Console, Some(command), _) => {
                steps.push(Step { line, kind: StepKind::Command { command: command.into(), output: Vec::new() } });
            }
            (Block::Console, None, Some(StepKind::Command { command, output })) => {
                match text.strip_prefix("> ").filter(|_| output.is_empty() && command.trim_end().ends_with('\\')) {
                    Some(more) => *command += &format!("\n{more}"),
                    None => output.push(text.into()),
                }
            }
            (Block::Console, None, _) => bail!("{}: output without a command", place()),
            _ => {}
        }
    }
    Ok(steps)
}

/// What kind of fenced block a line is in.
enum Block {
    None,
    Console,
    File(String),
    Other,
}

/// The kind of a block by the info string after its fence.
fn opened(info: &str, with_full: bool, place: &str) -> Result<Block> {
    let (language, flags) = info.split_once(',').unwrap_or((info, ""));
    if language != "console" {
        return Ok(flags.strip_prefix("file=").map_or(Block::Other, |path| Block::File(path.to_owned())));
    }
    match flags.split_once('=') {
        None if flags.is_empty() || (flags == "full" && with_full) => Ok(Block::Console),
        None if flags == "full" => Ok(Block::Other),
        Some(("ignore", reason)) => {
            skip(&format!("{place}: {}", reason.replace('-', " ")));
            Ok(Block::Other)
        }
        _ => bail!("{place}: a console block has no flag `{flags}`; use `full` or `ignore=REASON`"),
    }
}

/// Runs the commands of a page and compares what they print. Programs of the folder, if there is
/// one, are used before all others.
fn run(page: &TextFile, steps: &[Step], programs: Option<&Path>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let inside = |name: &str| folder.path().join(name);
    for name in ["bin", "home/.cache/atoll", "work", "logs"] {
        std::fs::create_dir_all(inside(name))?;
    }
    std::os::unix::fs::symlink(atoll(), inside("bin/atoll"))?;
    std::os::unix::fs::symlink(program("atoll-models"), inside("bin/atoll-models"))?;
    std::os::unix::fs::symlink(trained_models(), inside("home/.cache/atoll/models"))?;
    // Most pages compile the same model.
    share_kernels(&inside("home/.cache"))?;
    // `VENV/bin/python`.
    let environment = python();
    let environment = environment.ancestors().nth(2).context("Python is in the folder of its environment")?;
    std::os::unix::fs::symlink(environment, inside("home/.cache/atoll/venv"))?;
    std::fs::write(inside("page.sh"), script(steps, &inside("logs"))?)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let first = programs.map_or_else(String::new, |programs| format!("{}:", programs.display()));
    let mut shell = Command::new("bash")
        .arg(inside("page.sh"))
        .current_dir(inside("work"))
        .env("PATH", format!("{first}{}:{path}", inside("bin").display()))
        .env("HOME", inside("home"))
        .env("XDG_RUNTIME_DIR", inside("home"))
        .env("ATOLL_REPO", root())
        .env_remove("XDG_CACHE_HOME")
        .env_remove("XDG_STATE_HOME")
        .env_remove("ATOLL_CONTROL_SOCKET")
        .env_remove("ATOLL_LOG")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("the commands need bash")?;
    let start = Instant::now();
    let timeout = if full() { FULL_PAGE_TIMEOUT } else { PAGE_TIMEOUT };
    let has_ended = loop {
        match shell.try_wait()? {
            Some(_) => break true,
            None if start.elapsed() > timeout => break false,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    // Commands in the background are members of the group.
    let _ = kill_process_group(Pid::from_child(&shell), Signal::KILL);
    shell.wait()?;
    let (failures, printed) = compare(page, steps, &inside("logs"))?;
    ensure!(has_ended, "{}: the commands took more than {} s\n{failures}", page.path, timeout.as_secs());
    if std::env::var_os("ATOLL_BLESS").is_some_and(|value| value == "1") {
        return Ok(std::fs::write(root().join(&page.path), blessed(page, steps, &printed))?);
    }
    ensure!(failures.is_empty(), "{failures}");
    Ok(())
}

/// The differences between a page and what its commands printed, and what each step printed.
fn compare(page: &TextFile, steps: &[Step], logs: &Path) -> Result<(String, Vec<Vec<String>>)> {
    let (mut failures, mut all) = (String::new(), Vec::new());
    for (index, Step { line, kind }) in steps.iter().enumerate() {
        let read = |name: String| std::fs::read_to_string(logs.join(name)).unwrap_or_default();
        let StepKind::Command { command, output } = kind else {
            all.push(Vec::new());
            continue;
        };
        let status = read(format!("{index}.status"));
        let mut printed: Vec<String> =
            read(format!("{index}.out")).lines().map(|line| line.trim_end().into()).collect();
        if is_background(command) {
            printed.truncate(output.len());
        }
        let shows_error = output.iter().any(|line| line.starts_with("error"));
        let is_success = status.trim() == "0" || shows_error || is_background(command);
        if !is_success || !matches(output, &printed) {
            writeln!(failures, "{}:{line}: $ {command}", page.path)?;
            writeln!(failures, "  status: {}", if status.is_empty() { "it did not end" } else { status.trim() })?;
            writeln!(failures, "  on the page:\n    {}", output.join("\n    "))?;
            writeln!(failures, "  printed:\n    {}", printed.join("\n    "))?;
        }
        all.push(printed);
    }
    Ok((failures, all))
}

/// The page with the output that was printed in place of output that differs.
fn blessed(page: &TextFile, steps: &[Step], printed: &[Vec<String>]) -> String {
    let lines: Vec<&str> = page.text.lines().collect();
    let (mut text, mut at) = (String::new(), 0);
    for (Step { line, kind }, printed) in steps.iter().zip(printed) {
        let StepKind::Command { command, output } = kind else { continue };
        let end = line - 1 + command.lines().count();
        text.extend(lines[at..end].iter().map(|line| format!("{line}\n")));
        let kept = if matches(output, printed) { output } else { printed };
        text.extend(kept.iter().map(|line| format!("{line}\n")));
        at = end + output.len();
    }
    text.extend(lines[at..].iter().map(|line| format!("{line}\n")));
    text
}

/// A script that writes the files, runs the commands, and keeps output and status of each.
fn script(steps: &[Step], logs: &Path) -> Result<String> {
    let mut script = String::new();
    for (index, step) in steps.iter().enumerate() {
        let log = |ending: &str| format!("{}/{index}.{ending}", logs.display());
        let (out, status) = (log("out"), log("status"));
        match &step.kind {
            StepKind::File { path, contents } => {
                std::fs::write(log("file"), contents)?;
                writeln!(script, "mkdir -p \"$(dirname {path})\"; cp {} {path}", log("file"))?;
            }
            StepKind::Command { command, output } if is_background(command) => {
                let (command, lines) = (command.trim_end().trim_end_matches('&'), output.len());
                writeln!(script, "{{ {command}\n}} >{out} 2>&1 &")?;
                let has_printed = format!("[ \"$(wc -l <{out})\" -ge {lines} ]");
                let times = BACKGROUND_SECONDS * 10;
                writeln!(script, "for _ in $(seq {times}); do {has_printed} && break; sleep 0.1; done")?;
            }
            StepKind::Command { command, .. } => {
                writeln!(script, "{{ {command}\n}} >{out} 2>&1\necho $? >{status}")?;
            }
        }
    }
    Ok(script)
}

/// Whether the lines of a page are those that were printed; `...` stands for any number of lines.
fn matches(page: &[String], printed: &[String]) -> bool {
    match page.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line.trim() == "..." => (0..=printed.len()).any(|at| matches(rest, &printed[at..])),
        Some((line, rest)) => printed
            .split_first()
            .is_some_and(|(other, printed)| figures_apart(line) == figures_apart(other) && matches(rest, printed)),
    }
}

/// A line with all figures and their units replaced, and runs of spaces and dashes shortened.
fn figures_apart(line: &str) -> String {
    let figure =
        Regex::new(r"\b[0-9a-f]{8,}\b|[+-]?\d+(?:[.,:]\d+)*(?:e[+-]?\d+)?(?:[x×]\d+)*").expect("it is a pattern");
    let unit = Regex::new(r"# ?(?:[kKMGT]i?B|B|ns|us|µs|ms|s|h|%|x|×)(?:\b|$|\s)").expect("it is a pattern");
    let space = Regex::new(r"\s+|[-─]{2,}").expect("it is a pattern");
    let line = figure.replace_all(line.trim(), "#");
    let line = unit.replace_all(&line, "# ");
    space.replace_all(&line, " ").trim().to_owned()
}

#[test]
fn transcripts_are_read_compared_and_written() -> Result<()> {
    let text = "```console\n$ one \\\n> two\nout 1.5 ms\n$ three &\n```\n\n```toml,file=a/b.toml\nx = 1\n```\n\
        ```console,full\n$ four\n```\n```text\n$ five\n```\n";
    let page = TextFile { path: "x.md".into(), text: text.into() };
    let found = steps(&page, false)?;
    let command = |command: &str, output: &[&str]| StepKind::Command {
        command: command.into(),
        output: output.iter().map(|line| (*line).to_owned()).collect(),
    };
    let file = StepKind::File { path: "a/b.toml".into(), contents: "x = 1\n".into() };
    let expected = [(2, command("one \\\ntwo", &["out 1.5 ms"])), (5, command("three &", &[])), (8, file)];
    assert_eq!(found, expected.map(|(line, kind)| Step { line, kind }));
    assert_eq!(steps(&page, true)?.len(), 4);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let printed = [lines("other"), Vec::new(), Vec::new()];
    assert_eq!(blessed(&page, &found, &printed), text.replace("out 1.5 ms", "other"));
    assert_eq!(blessed(&page, &found, &[lines("out 7 s"), Vec::new(), Vec::new()]), text);
    assert!(is_background("a &") && !is_background("a && b") && !is_background("a &&"));
    assert!(matches(&lines("a 1.5 ms\n...\nz"), &lines("a   20 us\nb\nc\nz")));
    assert!(matches(&lines("took 3 KiB, 4 s"), &lines("took 12.5 MiB, 900 ms")));
    assert!(!matches(&lines("a 1"), &lines("b 1")));
    assert!(!matches(&lines("a"), &lines("a\nb")));
    Ok(())
}
