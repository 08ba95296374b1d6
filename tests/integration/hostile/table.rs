//! The table of attacks in `SECURITY.md`: every test that it names exists.

use anyhow::{Context, Result, ensure};
use atoll_tests::root;
use atoll_tests::source::text_files;

#[test]
fn every_test_in_the_table_of_attacks_exists() -> Result<()> {
    let text = std::fs::read_to_string(root().join("SECURITY.md"))?;
    let (_, section) = text.split_once("\n## Attacks in the tests\n").context("the section")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    ensure!(rows.len() >= 20, "{} rows", rows.len());
    let files = text_files(&[".rs"])?;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        ensure!(cells.len() == 4, "four cells: {row}");
        let names: Vec<&str> = cells[3].split('`').skip(1).step_by(2).collect();
        ensure!(!names.is_empty(), "a test: {row}");
        for name in names {
            let start = format!("#[test]\nfn {name}()");
            let inner = format!("#[test]\n    fn {name}()");
            let exists = files.iter().any(|file| file.text.contains(&start) || file.text.contains(&inner));
            ensure!(exists, "SECURITY.md names the test `{name}`, which does not exist");
        }
    }
    Ok(())
}
