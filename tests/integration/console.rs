//! The commands of `README.md` and of the guide, run as they are written.
//!
//! A fenced block with the info string `console` is a transcript: lines that begin with `$ ` are
//! commands (`> ` continues one), the other lines are their output. Commands of a page run one
//! after the other in one shell, in an empty folder outside of the repository, with `atoll` on
//! `PATH`. Output has to match except for figures with their units; a line `...` stands for any
//! number of lines. A command that ends in `&` runs until the end of the page; the lines below it
//! are those that it prints first, and the next command waits for them.
//!
//! `console,full` runs with `ATOLL_TEST_FULL=1` only. `console,ignore=REASON` does not run.

use crate::serve::atoll;
use anyhow::{Context, Result, bail, ensure};
use atoll_tests::source::{TextFile, text_files};
use atoll_tests::{full, skip};
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

/// A command and the output that the page shows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    line: usize,
    command: String,
    output: Vec<String>,
}

impl Step {
    fn is_background(&self) -> bool {
        self.command.trim_end().ends_with('&') && !self.command.trim_end().ends_with("&&")
    }
}

#[test]
fn commands_of_the_documents_run_as_written() -> Result<()> {
    let pages = text_files(&[".md"])?;
    let pages = pages.iter().filter(|page| page.path == "README.md" || page.path.starts_with("docs/guide/"));
    let mut failures = String::new();
    for page in pages {
        let steps = steps(page, full())?;
        if !steps.is_empty() {
            if let Err(error) = run(page, &steps) {
                writeln!(failures, "{error:#}")?;
            }
        }
    }
    ensure!(failures.is_empty(), "{failures}");
    Ok(())
}

/// The commands of a page that are to run.
fn steps(page: &TextFile, with_full: bool) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut is_inside, mut runs) = (false, false);
    for (index, line) in page.text.lines().enumerate() {
        let place = || format!("{}:{}", page.path, index + 1);
        if let Some(info) = line.strip_prefix("```") {
            let mut words = info.split(',');
            let is_console = words.next() == Some("console") && !is_inside;
            runs = is_console;
            for word in words.filter(|_| is_console) {
                match word.split_once('=') {
                    None if word == "full" => runs &= with_full,
                    Some(("ignore", reason)) => {
                        skip(&format!("{}: {reason}", place()));
                        runs = false;
                    }
                    _ => bail!(
                        "{}: `{word}` is no flag of a console block; there are `full` and `ignore=REASON`",
                        place()
                    ),
                }
            }
            is_inside = !is_inside;
        } else if is_inside && runs {
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(Step { line: index + 1, command: command.into(), output: Vec::new() });
            } else {
                let step = steps.last_mut().with_context(|| format!("{}: output without a command", place()))?;
                match line.strip_prefix("> ").filter(|_| step.output.is_empty()) {
                    Some(more) => step.command += &format!("\n{more}"),
                    None => step.output.push(line.into()),
                }
            }
        }
    }
    Ok(steps)
}

/// Runs the commands of a page and compares what they print.
fn run(page: &TextFile, steps: &[Step]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let inside = |name: &str| folder.path().join(name);
    for name in ["bin", "home", "work", "logs"] {
        std::fs::create_dir(inside(name))?;
    }
    std::os::unix::fs::symlink(atoll(), inside("bin/atoll"))?;
    std::fs::write(inside("page.sh"), script(steps, &inside("logs")))?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash")
        .arg(inside("page.sh"))
        .current_dir(inside("work"))
        .env("PATH", format!("{}:{path}", inside("bin").display()))
        .env("HOME", inside("home"))
        .env("XDG_RUNTIME_DIR", inside("home"))
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
    let mut failures = String::new();
    for (index, step) in steps.iter().enumerate() {
        let Step { line, command, output } = step;
        let read = |name: String| std::fs::read_to_string(inside("logs").join(name)).unwrap_or_default();
        let printed = read(format!("{index}.out"));
        let status = read(format!("{index}.status"));
        let printed: Vec<String> = printed.lines().map(str::to_owned).collect();
        let printed = if step.is_background() { &printed[..printed.len().min(output.len())] } else { &printed[..] };
        let shows_error = output.iter().any(|line| line.starts_with("error"));
        let is_success = status.trim() == "0" || shows_error || step.is_background();
        if !is_success || !matches(output, printed) {
            writeln!(failures, "{}:{line}: $ {command}", page.path)?;
            writeln!(failures, "  status: {}", if status.is_empty() { "it did not end" } else { status.trim() })?;
            writeln!(
                failures,
                "  on the page:\n    {}\n  printed:\n    {}",
                output.join("\n    "),
                printed.join("\n    ")
            )?;
        }
    }
    ensure!(has_ended, "{}: the commands took more than {} s\n{failures}", page.path, timeout.as_secs());
    ensure!(failures.is_empty(), "{failures}");
    Ok(())
}

/// A script that runs the commands and keeps output and status of each.
fn script(steps: &[Step], logs: &Path) -> String {
    let mut script = String::new();
    for (index, step) in steps.iter().enumerate() {
        let (out, status) = (format!("{}/{index}.out", logs.display()), format!("{}/{index}.status", logs.display()));
        let lines = step.output.len();
        let command = step.command.trim_end();
        // Writing to a string cannot fail.
        if step.is_background() {
            let command = command.trim_end_matches('&');
            let _ = writeln!(script, "{{ {command}\n}} >{out} 2>&1 &");
            let _ = writeln!(
                script,
                "for _ in $(seq {}); do [ \"$(wc -l <{out})\" -ge {lines} ] && break; sleep 0.1; done",
                BACKGROUND_SECONDS * 10
            );
        } else {
            let _ = writeln!(script, "{{ {command}\n}} >{out} 2>&1\necho $? >{status}");
        }
    }
    script
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
    let figure = Regex::new(r"[0-9a-f]{16,}|[+-]?\d+(?:[.,:]\d+)*(?:e[+-]?\d+)?(?:[x×]\d+)*").expect("it is a pattern");
    let unit = Regex::new(r"# ?(?:[kKMGT]i?B|B|ns|us|µs|ms|s|h|%|x|×)(?:\b|$|\s)").expect("it is a pattern");
    let space = Regex::new(r"\s+|[-─]{2,}").expect("it is a pattern");
    let line = figure.replace_all(line.trim(), "#");
    let line = unit.replace_all(&line, "# ");
    space.replace_all(&line, " ").trim().to_owned()
}

#[test]
fn transcripts_are_read_and_compared() -> Result<()> {
    let text =
        "```console\n$ one \\\n> two\nout 1.5 ms\n$ three &\n```\n```console,full\n$ four\n```\n```text\n$ five\n```\n";
    let page = TextFile { path: "x.md".into(), text: text.into() };
    let found = steps(&page, false)?;
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        (found[0].command.as_str(), found[0].output.as_slice()),
        ("one \\\ntwo", &["out 1.5 ms".to_owned()][..])
    );
    assert!(found[1].is_background() && !found[0].is_background());
    assert_eq!(steps(&page, true)?.len(), 3);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(matches(&lines("a 1.5 ms\n...\nz"), &lines("a   20 us\nb\nc\nz")));
    assert!(matches(&lines("took 3 KiB, 4 s"), &lines("took 12.5 MiB, 900 ms")));
    assert!(!matches(&lines("a 1"), &lines("b 1")));
    assert!(!matches(&lines("a"), &lines("a\nb")));
    Ok(())
}
