//! `tools/beside.py`, which compares an earlier commit with the present tree.

use anyhow::{Result, ensure};
use atoll_tests::{python, root};
use std::path::Path;
use std::process::{Command, Stdio};

fn write_round(folder: &Path, round: u32, side: &str, values: &str) -> Result<()> {
    Ok(std::fs::write(folder.join(format!("results/engine.{round}.{side}.json")), values)?)
}

#[test]
fn finished_rounds_are_compared_by_medians_ratios_and_spreads() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("results"))?;
    std::fs::write(folder.path().join("commits.json"), r#"{ "then": "f95a0d3", "now": "0123456" }"#)?;
    for (round, [then, now]) in [[1.0, 4.0], [3.0, 1.0], [2.0, 1.0]].into_iter().enumerate() {
        let round = round as u32;
        write_round(folder.path(), round, "then", &format!(r#"{{ "one unit": {then}, "only then": 1 }}"#))?;
        write_round(folder.path(), round, "now", &format!(r#"{{ "one unit": {now} }}"#))?;
    }
    std::fs::write(folder.path().join("results/engine.3.now.unfinished"), "{")?;
    let output = Command::new(python())
        .arg(root().join("tools/beside.py"))
        .args(["f95a0d3", "--table", "--only", "engine", "quota", "--folder"])
        .arg(folder.path())
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let rows: Vec<&str> =
        text.lines().filter(|line| line.starts_with("| engine") || line.starts_with("| quota")).collect();
    ensure!(rows == ["| engine: one unit | 2 | 1 | 0.500 | 100.0%, 300.0% | 3 |"], "{text}");
    Ok(())
}

/// What `cargo bench` prints, with a name that fits before its time and one that does not.
const CRITERION: &str = "\
padding choice          time:   [19.9 ns 20.1 ns 20.4 ns]
                        change: [-1.0% +0.1% +1.2%] (p = 0.9 > 0.05)
memory decision, 1,000 functions, 64 clients
                        time:   [1.18 µs 1.19 µs 1.21 µs]
";

#[test]
fn times_of_decisions_are_read_from_what_criterion_prints() -> Result<()> {
    let program = "import sys, beside; print(beside.decisions(sys.stdin.read()))";
    let mut reader = Command::new(python())
        .args(["-B", "-c", program])
        .env("PYTHONPATH", root().join("tools"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    std::io::Write::write_all(&mut reader.stdin.take().expect("it is piped"), CRITERION.as_bytes())?;
    let text = String::from_utf8(reader.wait_with_output()?.stdout)?;
    let expected = "{'padding choice, ns': 20.1, 'memory decision, 1,000 functions, 64 clients, ns': 1190.0}";
    ensure!(text.trim() == expected, "{text}");
    Ok(())
}
