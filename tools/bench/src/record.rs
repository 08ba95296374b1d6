//! Pages of saved results: one file per day and commit, to which a measurement appends a section.

use crate::failure::{OrUserError, user_error};
use crate::report::Findings;
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the repository keeps its results.
const FOLDER: &str = "docs/benchmarks";

/// A measurement whose result will be saved.
pub(crate) struct Record {
    folder: PathBuf,
    begun: SystemTime,
    commit: Option<Commit>,
    /// The machine's load average over the last minute before the measurement.
    load: Option<f64>,
}

/// The commit that is checked out in the repository. The program may have been built from another
/// one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Commit {
    /// The abbreviated hash.
    name: String,
    /// Whether files outside of [`FOLDER`] differ from the commit.
    has_changes: bool,
}

impl Record {
    /// Finds the folder and the commit; creates the folder if it was named and does not exist.
    pub(crate) fn begin(folder: Option<&Path>) -> Result<Record> {
        let root = repository(&std::env::current_dir().context("the current folder")?);
        let folder = match (folder, &root) {
            (Some(folder), _) => {
                std::fs::create_dir_all(folder)
                    .with_context(|| format!("--save={}: cannot create the folder", folder.display()))
                    .or_user_error()?;
                folder.to_owned()
            }
            (None, Some(root)) => root.join(FOLDER),
            (None, None) => {
                return Err(user_error(format!(
                    "--save: the current folder is in no git repository with the folder {FOLDER}; run the command in \
                     Atoll's repository, or name a folder with --save=DIR"
                )));
            }
        };
        let commit = root.as_deref().map(commit).transpose()?;
        Ok(Record { folder, begun: SystemTime::now(), commit, load: load() })
    }

    /// Appends a section to the page and returns the path of the page.
    pub(crate) fn append(&self, findings: &Findings) -> Result<PathBuf> {
        let (date, time) = utc(self.begun);
        let name = match &self.commit {
            Some(commit) => format!("{date}-{}", commit.name),
            None => date.clone(),
        };
        let path = self.folder.join(format!("{name}.md"));
        let error = || format!("cannot write {}", path.display());
        let mut file = OpenOptions::new().create(true).append(true).open(&path).with_context(error)?;
        let mut text = String::new();
        if file.metadata().with_context(error)?.len() == 0 {
            let commit = self.commit.as_ref().map_or_else(String::new, |commit| format!(", commit {}", commit.name));
            // Writing to a string cannot fail.
            let _ = write!(text, "# {date}{commit}\n\nResults that `atoll bench --save` appended as they came.\n");
        }
        text += &self.section(&time, &command_line(std::env::args_os()), findings);
        // One call, so that measurements that end at the same time do not mix their lines.
        file.write_all(text.as_bytes()).with_context(error)?;
        Ok(path)
    }

    fn section(&self, time: &str, command: &str, findings: &Findings) -> String {
        let commit = match &self.commit {
            None => "not known, since the command ran outside of Atoll's repository".to_owned(),
            Some(Commit { name, has_changes: false }) => format!("{name}, no changes in the working tree"),
            Some(Commit { name, has_changes: true }) => format!("{name}, and changes in the working tree"),
        };
        let load = self.load.map_or_else(|| "not known".to_owned(), |load| format!("{load:.2}"));
        let mut text = format!("\n## {time} UTC\n\n```sh\n{command}\n```\n\n");
        let lines = [
            ("machine", machine()),
            ("load average before", load),
            ("commit checked out", commit),
            ("program", program()),
        ];
        for (name, value) in lines {
            let _ = writeln!(text, "- {name}: {value}");
        }
        if let Some(failure) = &findings.failure {
            let _ = write!(text, "- the command failed after it printed this:\n\n```text\n{failure:#}\n```\n");
        }
        let _ = write!(text, "\n```text\n{}\n```\n", findings.text.trim_end());
        let _ = write!(text, "\n```json\n{}\n```\n", findings.json.trim_end());
        text
    }
}

/// The root of the repository that contains a folder, if it has a folder for results.
fn repository(folder: &Path) -> Option<PathBuf> {
    let root = PathBuf::from(git(folder, &["rev-parse", "--show-toplevel"]).ok()?);
    root.join(FOLDER).is_dir().then_some(root)
}

fn commit(root: &Path) -> Result<Commit> {
    let name = git(root, &["rev-parse", "--short=7", "HEAD"])?;
    // Saved results do not count as changes of the program.
    let changes = git(root, &["status", "--porcelain", "--", ".", &format!(":(exclude){FOLDER}")])?;
    Ok(Commit { name, has_changes: !changes.is_empty() })
}

fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().context("cannot run git")?;
    anyhow::ensure!(
        output.status.success(),
        "git {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// CPU model, cores that this process may use, and kernel.
fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut fields = cpus.lines().filter_map(|line| line.split_once(':'));
    let model = fields.find(|(name, _)| name.trim() == "model name").map(|(_, model)| model.trim().to_owned());
    let all = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let usable = std::thread::available_parallelism().map_or(1, |count| count.get());
    let cores = if usable < all { format!("{usable} of {all} cores") } else { format!("{usable} cores") };
    let system = rustix::system::uname();
    let [name, release, architecture] =
        [system.sysname(), system.release(), system.machine()].map(|text| text.to_string_lossy().into_owned());
    format!("{}, {cores}, {architecture}, {name} {release}", model.as_deref().unwrap_or("CPU of unknown model"))
}

fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

fn program() -> String {
    let kind = if cfg!(debug_assertions) { "built without optimization: its times mean nothing" } else { "release" };
    format!("atoll {}, {kind}", env!("CARGO_PKG_VERSION"))
}

/// The command line as a shell reads it, with the program's name in place of its path.
fn command_line(arguments: impl IntoIterator<Item = OsString>) -> String {
    let mut words = arguments.into_iter().map(|word| word.to_string_lossy().into_owned());
    let program = words.next().unwrap_or_default();
    let program = Path::new(&program).file_name().map(|name| name.to_string_lossy().into_owned());
    program.into_iter().chain(words).map(|word| quoted(&word)).collect::<Vec<_>>().join(" ")
}

/// A word of a command line, in quotes if the shell would not read it as it is.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_./:=,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Date and time of day in UTC.
fn utc(time: SystemTime) -> (String, String) {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let of_day = seconds % 86_400;
    (format!("{year}-{month:02}-{day:02}"), format!("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60))
}

/// Year, month and day of a day, counted from 1970-01-01.
fn date(mut day: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for days in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_written_in_utc() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        let text = |date: &str, time: &str| (date.to_owned(), time.to_owned());
        assert_eq!(at(0), text("1970-01-01", "00:00:00"));
        assert_eq!(at(951_827_696), text("2000-02-29", "12:34:56"));
        assert_eq!(at(1_735_689_599), text("2024-12-31", "23:59:59"));
        assert_eq!(at(4_107_542_400), text("2100-03-01", "00:00:00"));
    }

    #[test]
    fn command_lines_can_be_pasted() {
        let words = ["/x/target/release/atoll", "bench", "kernel", "--only", "a|b", "--save", "it's", ""];
        assert_eq!(command_line(words.map(OsString::from)), r"atoll bench kernel --only 'a|b' --save 'it'\''s' ''");
    }

    #[test]
    fn a_section_has_the_conditions_the_text_and_the_json() -> Result<()> {
        let commit = Some(Commit { name: "abc1234".into(), has_changes: true });
        let record = Record { folder: "x".into(), begun: UNIX_EPOCH, commit, load: Some(0.5) };
        let findings = Findings::new(&[1, 2], "two numbers\n")?.with_failure(anyhow::anyhow!("3 is missing"));
        let text = record.section("12:00:00", "atoll bench kernel", &findings);
        assert!(text.starts_with("\n## 12:00:00 UTC\n\n```sh\natoll bench kernel\n```\n\n- machine: "), "{text}");
        assert!(text.contains("- load average before: 0.50\n- commit checked out: abc1234, and changes"), "{text}");
        assert!(text.contains("```text\n3 is missing\n```"), "{text}");
        assert!(text.ends_with("```text\ntwo numbers\n```\n\n```json\n[\n  1,\n  2\n]\n```\n"), "{text}");
        Ok(())
    }
}
