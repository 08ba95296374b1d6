//! The rows of the table: `docs/benchmarks/measures.toml`, filled with the latest saved results.

use super::saved::{Saved, normalized};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json_path::JsonPath;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measures {
    section: Vec<Section>,
    machine: Vec<Machine>,
}

/// A machine of the table's legend.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Machine {
    /// Its name in the table.
    letter: String,
    about: String,
    /// Prefix of its description in saved results.
    cpu: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    title: String,
    measure: Vec<Measure>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Measure {
    name: String,
    budget: Option<String>,
    /// The command that prints the figure.
    command: Option<String>,
    /// Shown instead of the command.
    note: Option<String>,
    /// The text of the row, with names of values in braces.
    latest: Option<String>,
    peer: Option<String>,
    #[serde(default)]
    values: BTreeMap<String, Value>,
    /// Shown in the row until a result of the command is saved.
    recorded: Option<Recorded>,
}

/// A figure of a command that cannot save its result, or has no saved result yet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    latest: String,
    verdict: String,
    peer: String,
    date: String,
    machine: String,
}

/// One or more numbers of a result.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Value {
    /// JSONPath of the numbers.
    at: String,
    /// JSONPath of the divisor of each number.
    over: Option<String>,
    /// Budgets, which every number has to meet.
    at_most: Option<f64>,
    at_least: Option<f64>,
}

/// A value of a result: the smallest and the largest of its numbers.
struct Found {
    least: f64,
    largest: f64,
    is_met: Option<bool>,
}

impl Measures {
    /// The table's rows, as Markdown.
    pub(super) fn rows(&self, saved: &[Saved]) -> Result<String> {
        let mut rows = String::new();
        for section in &self.section {
            rows += &format!("| **{}** | | | | | | | |\n", section.title);
            for measure in &section.measure {
                rows += &self.row(measure, saved).with_context(|| measure.name.clone())?;
            }
        }
        Ok(rows)
    }

    /// The legend of the machines' letters, as Markdown.
    pub(super) fn legend(&self) -> String {
        self.machine.iter().map(|machine| format!("- **{}**: {}\n", machine.letter, machine.about)).collect()
    }

    fn row(&self, measure: &Measure, saved: &[Saved]) -> Result<String> {
        let command = measure.command.as_deref();
        let latest = command.map(normalized).and_then(|command| {
            saved.iter().rev().find(|result| !measure.values.is_empty() && result.command == command)
        });
        let Recorded { latest, verdict, peer, date, machine } = match (latest, &measure.recorded) {
            (Some(result), _) => &self.filled(measure, result)?,
            (None, Some(recorded)) => recorded,
            (None, None) => bail!("no result of this measure is saved, and none is recorded"),
        };
        let command = match (command, &measure.note) {
            (Some(command), None) => format!("`{}`", command.replace('|', r"\|")),
            (None, Some(note)) => note.clone(),
            _ => bail!("either a command or a note"),
        };
        let budget = measure.budget.as_deref().unwrap_or("–");
        let name = &measure.name;
        Ok(format!("| {name} | {budget} | {latest} | {verdict} | {peer} | {command} | {date} | {machine} |\n"))
    }

    fn filled(&self, measure: &Measure, result: &Saved) -> Result<Recorded> {
        let mut found = BTreeMap::new();
        for (name, value) in &measure.values {
            found.insert(name.as_str(), value.find(&result.json).with_context(|| format!("value {name}"))?);
        }
        let machine = self
            .machine
            .iter()
            .find(|machine| machine.cpu.as_ref().is_some_and(|cpu| result.machine.starts_with(cpu)))
            .with_context(|| format!("measures.toml knows no machine \"{}\"; describe it there", result.machine))?;
        let busy = if result.load >= 0.5 { ", busy" } else { "" };
        let commit = result.commit.as_ref().map_or_else(String::new, |commit| format!(", {commit}"));
        let text = |form: &Option<String>| form.as_ref().map_or_else(|| Ok("–".to_owned()), |form| fill(form, &found));
        Ok(Recorded {
            latest: text(&measure.latest)?,
            verdict: verdict(&found),
            peer: text(&measure.peer)?,
            date: format!("{}{commit}", result.at.0),
            machine: format!("{}{busy}", machine.letter),
        })
    }
}

impl Value {
    fn find(&self, json: &serde_json::Value) -> Result<Found> {
        let mut numbers = numbers(&self.at, json)?;
        if let Some(over) = &self.over {
            let over = numbers_as_many(over, json, numbers.len())?;
            numbers.iter_mut().zip(over).for_each(|(number, over)| *number /= over);
        }
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let largest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        ensure!(least.is_finite() && largest.is_finite(), "{} has no finite numbers", self.at);
        let bounds = [self.at_most.map(|bound| largest <= bound), self.at_least.map(|bound| least >= bound)];
        let is_met = bounds.into_iter().flatten().reduce(|a, b| a && b);
        Ok(Found { least, largest, is_met })
    }
}

/// The numbers that a JSONPath finds. Fails if there are none.
fn numbers(path: &str, json: &serde_json::Value) -> Result<Vec<f64>> {
    let found = JsonPath::parse(path)?.query(json).all();
    ensure!(!found.is_empty(), "{path} finds nothing");
    found.into_iter().map(|value| value.as_f64().with_context(|| format!("{path} finds {value}"))).collect()
}

/// `count` numbers that a JSONPath finds; a single number is repeated.
fn numbers_as_many(path: &str, json: &serde_json::Value, count: usize) -> Result<Vec<f64>> {
    let found = numbers(path, json)?;
    match found.as_slice() {
        &[one] => Ok(vec![one; count]),
        _ if found.len() == count => Ok(found),
        _ => bail!("{path} finds {} numbers for {count}", found.len()),
    }
}

/// Replaces the names in braces by their values.
fn fill(form: &str, found: &BTreeMap<&str, Found>) -> Result<String> {
    let text =
        found.iter().fold(form.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), &value.text()));
    ensure!(!text.contains('{'), "\"{form}\" names a value that the row does not have");
    Ok(text)
}

/// The verdict: `met`, or the names of the values that miss their budgets.
fn verdict(found: &BTreeMap<&str, Found>) -> String {
    let judged: Vec<_> = found.iter().filter_map(|(name, value)| Some((*name, value.is_met?))).collect();
    let missed: Vec<_> = judged.iter().filter(|(_, is_met)| !is_met).map(|(name, _)| *name).collect();
    match (judged.len(), missed.len()) {
        (0, _) => "–".to_owned(),
        (_, 0) => "met".to_owned(),
        (all, missed) if all == missed => "missed".to_owned(),
        _ => format!("{} missed", missed.join(", ")),
    }
}

impl Found {
    /// A number, or a range if its two ends are written differently.
    fn text(&self) -> String {
        let (least, largest) = (written(self.least), written(self.largest));
        if least == largest { least } else { format!("{least}–{largest}") }
    }
}

/// A number with three significant digits.
fn written(number: f64) -> String {
    let digits = if number == 0.0 { 0 } else { 2 - number.abs().log10().floor() as i32 };
    let text = format!("{number:.*}", digits.clamp(0, 6) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[test]
fn rows_are_filled_with_the_latest_result_and_judged() -> Result<()> {
    let measures: Measures = toml::from_str(
        r#"
        [[machine]]
        letter = "T"
        about = "a test"
        cpu = "T, 2"

        [[section]]
        title = "Times"

        [[section.measure]]
        name = "start"
        budget = "30 / 300"
        command = "atoll bench x --policy a|b"
        latest = "{p50} / {p99} µs"
        peer = "{ratio}"
        values.p50 = { at = "$.rows[?@.policy=='a'].p50", at_most = 30 }
        values.p99 = { at = "$.rows[?@.policy=='a'].p99", at_most = 300 }
        values.ratio = { at = "$.rows[*].p99", over = "$.rows[*].p50" }
        recorded = { latest = "9", verdict = "met", peer = "–", date = "2026-01-01", machine = "T" }
        "#,
    )?;
    let before = "| **Times** | | | | | | | |\n| start | 30 / 300 ";
    let after = r"| `atoll bench x --policy a\|b` |";
    assert_eq!(measures.rows(&[])?, format!("{before}| 9 | met | – {after} 2026-01-01 | T |\n"));
    let json = serde_json::json!({ "rows": [
        { "policy": "a", "p50": 12.34, "p99": 299.6 }, { "policy": "a", "p50": 20.0, "p99": 301.2 },
        { "policy": "b", "p50": 100, "p99": 400 },
    ] });
    let result = |machine: &str, load| Saved {
        at: ("2026-01-02".into(), "10:00:00".into()),
        commit: Some("abc1234".into()),
        command: "atoll bench x --policy a|b".into(),
        machine: machine.into(),
        load,
        json: json.clone(),
    };
    let filled =
        format!("{before}| 12.3–20 / 300–301 µs | p99 missed | 4–24.3 {after} 2026-01-02, abc1234 | T, busy |\n");
    assert_eq!(measures.rows(&[result("T, 2 cores", 0.7)])?, filled);
    let error = format!("{:#}", measures.rows(&[result("another", 0.0)]).unwrap_err());
    assert!(error.contains("knows no machine \"another\""), "{error}");
    Ok(())
}
