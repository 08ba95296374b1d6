//! Recorded mixes: sequences of requests for functions, with the sizes of the functions' constants.
//!
//! `atoll bench residency` compares residency policies on them. [`generate`] makes a mix from a
//! seed, but the benchmark uses the file in `models/mixes`: a plain text whose changes a diff
//! shows. Mixes recorded elsewhere have the same format.
//!
//! ```text
//! mix zipf
//! about 24 functions asked for by Zipf's law
//! seed 1
//! memory_bytes 1000000000
//! function 104857600 10785 be 0
//! requests 3:0 41:7+9
//! ```
//!
//! A `function` has bytes, microseconds to reload, class (`rt` or `be`) and tenant. A request has
//! milliseconds since the previous one, and the numbers of the functions that it runs one after
//! another. All of them stay on the device until the last one has finished.

mod generate;

pub use generate::generate;

use std::fmt::{self, Write as _};
use std::str::FromStr;

/// Requests on one line of the file.
const REQUESTS_PER_LINE: usize = 16;
/// Largest number in a file, so that sums, and times in nanoseconds, fit 64 bits.
const NUMBER_MAX: u64 = 1_000_000_000_000;

/// The mixes of the repository: name and text.
pub const MIXES: &[(&str, &str)] = &[
    ("anticorrelated", include_str!("../../mixes/anticorrelated.mix")),
    ("bursts", include_str!("../../mixes/bursts.mix")),
    ("chains", include_str!("../../mixes/chains.mix")),
    ("loop", include_str!("../../mixes/loop.mix")),
    ("periodic", include_str!("../../mixes/periodic.mix")),
    ("phases", include_str!("../../mixes/phases.mix")),
    ("scan", include_str!("../../mixes/scan.mix")),
    ("tiers", include_str!("../../mixes/tiers.mix")),
    ("uniform", include_str!("../../mixes/uniform.mix")),
    ("zipf", include_str!("../../mixes/zipf.mix")),
];

/// A mix: functions and the requests for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Its name.
    pub name: String,
    /// A description in one line.
    pub about: String,
    /// The seed of its generator.
    pub seed: u64,
    /// Bytes of device memory for constants.
    pub memory_bytes: u64,
    /// The functions.
    pub functions: Vec<MixFunction>,
    /// The requests, in order.
    pub requests: Vec<MixRequest>,
}

/// A function of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixFunction {
    /// Size of its constants in bytes.
    pub bytes: u64,
    /// Time to load them onto the device, in microseconds.
    pub reload_us: u64,
    /// Whether it is a real-time function.
    pub real_time: bool,
    /// The tenant that owns it.
    pub tenant: u32,
}

/// A request of a mix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MixRequest {
    /// Arrival in milliseconds since the start.
    pub at_ms: u64,
    /// Indices of the functions that it runs, in order; at least one.
    pub functions: Vec<usize>,
}

/// A syntax error in the text of a mix.
#[derive(Debug, PartialEq, Eq)]
pub struct MixError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for MixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for MixError {}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "mix {}\nabout {}\nseed {}\nmemory_bytes {}", self.name, self.about, self.seed, self.memory_bytes)?;
        for function in &self.functions {
            let class = if function.real_time { "rt" } else { "be" };
            writeln!(f, "function {} {} {class} {}", function.bytes, function.reload_us, function.tenant)?;
        }
        let mut before_ms = 0;
        for line in self.requests.chunks(REQUESTS_PER_LINE) {
            let mut text = String::from("requests");
            for request in line {
                let functions: Vec<String> = request.functions.iter().map(usize::to_string).collect();
                write!(text, " {}:{}", request.at_ms - before_ms, functions.join("+"))?;
                before_ms = request.at_ms;
            }
            writeln!(f, "{text}")?;
        }
        Ok(())
    }
}

impl FromStr for Mix {
    type Err = MixError;

    fn from_str(text: &str) -> Result<Mix, MixError> {
        let mut mix = Mix {
            name: String::new(),
            about: String::new(),
            seed: 0,
            memory_bytes: 0,
            functions: vec![],
            requests: vec![],
        };
        for (index, line) in text.lines().enumerate() {
            mix.line(line).map_err(|message| MixError { line: index + 1, message })?;
        }
        Ok(mix)
    }
}

impl Mix {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let (key, value) = line.split_once(' ').ok_or("expected a word and its value")?;
        match key {
            "mix" => self.name = value.into(),
            "about" => self.about = value.into(),
            "seed" => self.seed = number(value)?,
            "memory_bytes" => self.memory_bytes = number(value)?,
            "function" => self.functions.push(function(value)?),
            "requests" => {
                for text in value.split(' ') {
                    let request = self.request(text)?;
                    self.requests.push(request);
                }
            }
            _ => return Err(format!("unknown key `{key}`")),
        }
        Ok(())
    }

    fn request(&self, text: &str) -> Result<MixRequest, String> {
        let (gap, functions) =
            text.split_once(':').ok_or_else(|| format!("`{text}` is not a request (MILLISECONDS:FUNCTION)"))?;
        let before_ms = self.requests.last().map_or(0, |request| request.at_ms);
        let at_ms = before_ms + number(gap)?;
        if at_ms > NUMBER_MAX {
            return Err("the time is too large".into());
        }
        let mut request = MixRequest { at_ms, functions: vec![] };
        let mut bytes = 0;
        for index in functions.split('+') {
            let index = number(index)? as usize;
            bytes += self.functions.get(index).ok_or_else(|| format!("there is no function {index}"))?.bytes;
            if request.functions.contains(&index) {
                return Err(format!("`{text}` runs function {index} twice"));
            }
            request.functions.push(index);
        }
        if bytes > self.memory_bytes {
            return Err(format!("`{text}` needs {bytes} bytes at once, the device has {}", self.memory_bytes));
        }
        Ok(request)
    }
}

fn function(text: &str) -> Result<MixFunction, String> {
    let [bytes, reload_us, class, tenant] = text.split(' ').collect::<Vec<_>>()[..] else {
        return Err("a function has BYTES RELOAD_US CLASS TENANT".into());
    };
    let real_time = match class {
        "rt" => true,
        "be" => false,
        _ => return Err(format!("`{class}` is not a class (rt or be)")),
    };
    let tenant = number(tenant)?.try_into().map_err(|_| "the tenant is too large")?;
    Ok(MixFunction { bytes: number(bytes)?, reload_us: number(reload_us)?, real_time, tenant })
}

fn number(text: &str) -> Result<u64, String> {
    let number: u64 = text.parse().map_err(|_| format!("`{text}` is not an integer"))?;
    if number <= NUMBER_MAX { Ok(number) } else { Err(format!("{number} is too large")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_match_their_generators() {
        for (name, text) in MIXES {
            let mix = generate(name).unwrap_or_else(|| panic!("{name} has no generator"));
            assert!(
                mix.to_string() == *text,
                "{name} differs from its file; run `atoll-models --mix {name} -o models/mixes/{name}.mix`"
            );
            assert_eq!(text.parse(), Ok(mix));
        }
    }

    #[test]
    fn invalid_texts_are_rejected_with_their_line() {
        for (text, line, says) in [
            ("mix", 1, "expected a word"),
            ("mix a\nsize 3", 2, "unknown key `size`"),
            ("seed x", 1, "`x` is not an integer"),
            ("function 1 2 be", 1, "a function has"),
            ("function 1 2 xx 0", 1, "`xx` is not a class"),
            ("memory_bytes 1\nfunction 1 2 be 0\nrequests 1:0 1:1", 3, "there is no function 1"),
            ("function 1 2 be 0\nrequests 0", 2, "`0` is not a request"),
            ("memory_bytes 1\nfunction 1 2 be 0\nrequests 1000000000000:0 1:0", 3, "the time is too large"),
            ("seed 1000000000001", 1, "1000000000001 is too large"),
            ("memory_bytes 1\nfunction 1 2 be 0\nrequests 0:0 1:0+0", 3, "`1:0+0` runs function 0 twice"),
            ("memory_bytes 1\nfunction 2 2 be 0\nrequests 0:0", 3, "needs 2 bytes at once, the device has 1"),
        ] {
            let error = text.parse::<Mix>().unwrap_err();
            assert!(error.line == line && error.message.contains(says), "{text}: {error}");
        }
    }
}
