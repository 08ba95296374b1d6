//! Settings of a model, from `NAME.toml` beside it, `atoll.toml` in its folder, or Triton's
//! `config.pbtxt`.
//!
//! ```toml
//! class = "real-time"      # default "best-effort"
//! queue_capacity = 64      # most queued requests
//! device = "host:1"        # default: the placement policy decides
//! state = "auto"           # pairs of state inputs and outputs: found by name, or as in "h=hn,c=cn"
//! session_idle_ms = 60000  # how long an idle session is kept
//! max_batch_size = 32      # gathers requests into batches of up to 32 rows
//! response_cache = true    # keeps responses and sends them again for the same inputs
//! version_policy = "all"   # or "latest", "latest:2", "specific:1,3"
//! timeout_us = 500000      # deadline of requests that state no deadline, or a later one
//!
//! [generation]             # answers of a decoder are tokens, one after the other
//! max_tokens = 1024        # most tokens of an answer
//! end_token = 50256        # the token that ends an answer
//!
//! [dynamic_batching]       # all of it optional
//! preferred_batch_size = [8, 16]
//! max_queue_delay_microseconds = 500
//!
//! [hedging]                # sends slow requests to a second device, too, and uses the first answer
//! percentile = 95          # of the measured times, after which a request counts as slow
//! extra_percent = 5        # most requests that are sent twice, in percent
//!
//! [scaling]                # the daemon creates and removes instances by the load
//! latency_ms = 50          # target of the 99th percentile of latency
//! max_instances = 4
//!
//! [labels]                 # names of classes: output = file in the folder of the model
//! scores = "labels.txt"
//!
//! [symbols]                # sizes that the model leaves open
//! seq = "1..512"
//! batch = 8
//! ```
//!
//! `state` and `[symbols]` are options of the compiler, so they affect ONNX files only.

use super::regular::read_at_most;
use super::scaling::ScalingSettings;
use super::scan::Source;
use super::triton;
use super::versions::VersionPolicy;
use crate::generation::GenerationSettings;
use crate::limits::SETTINGS_BYTES_MAX;
use crate::sequences::control::Control;
use atoll_core::placement::HedgeConfig;
use atoll_engine::{BatchingOptions, Class};
use atoll_kgraph::{KernelGraph, ModelOptions, SizeRanges, States};
use atoll_protocol::{ConfigNote, ConfigTreatment};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Settings of one model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The class of requests that state no class.
    #[serde(default = "best_effort", deserialize_with = "class")]
    pub(crate) class: Class,
    /// Most queued requests; `None` for the engine's default.
    pub(crate) queue_capacity: Option<NonZeroUsize>,
    /// The device to load it on; `None` if the placement policy decides.
    pub(crate) device: Option<String>,
    /// Ranges of the model's symbolic sizes, for the compiler.
    #[serde(default)]
    pub(crate) symbols: SizeRanges,
    /// Pairs of state inputs and outputs, for the compiler.
    #[serde(default)]
    pub(crate) state: States,
    /// How long an idle session is kept; `None` for the default.
    pub(crate) session_idle_ms: Option<NonZeroU64>,
    /// Makes a decoder with state generate tokens: requests have a prompt, and answers are tokens,
    /// one after the other.
    pub(crate) generation: Option<GenerationSettings>,
    /// Most rows of a batch. If it is set, requests are gathered into batches. The compiler must
    /// have proven that the model's rows are independent.
    pub(crate) max_batch_size: Option<NonZeroU32>,
    /// How requests are gathered; needs `max_batch_size`.
    pub(crate) dynamic_batching: Option<DynamicBatching>,
    /// Whether the response cache keeps responses and sends them again for the same inputs; false
    /// if absent. Not for models that keep state or draw random numbers.
    #[serde(default)]
    pub(crate) response_cache: bool,
    /// Sends slow requests to a second device as well. Not for models that keep state. If absent,
    /// requests are not hedged.
    pub(crate) hedging: Option<HedgingSettings>,
    /// Creates and removes instances of the model by its load. If absent, the model is not
    /// autoscaled.
    pub(crate) scaling: Option<ScalingSettings>,
    /// Which versions in the model's folder are served; the highest if absent. Requests that name
    /// no version get the highest that is served.
    #[serde(default)]
    pub(crate) version_policy: VersionPolicy,
    /// Files in the model's folder with the names of an output's classes, one per line, by output.
    /// Answers to clients that ask for classes contain these names.
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    /// The deadline of requests that state no deadline or a later one, in microseconds from their
    /// arrival.
    pub(crate) timeout_us: Option<NonZeroU64>,
    /// The priority among best-effort requests of those that state none: 0 is the most urgent.
    #[serde(skip)]
    pub(crate) default_priority: u32,
    /// Whether requests are answered on streams, where clients take any number of answers.
    #[serde(skip)]
    pub(crate) decoupled: bool,
    /// Whether `config.pbtxt` has a `sequence_batching` with states or control inputs. As in Triton,
    /// `max_batch_size` then limits the sequences in a launch, and a request has one row.
    #[serde(skip)]
    pub(crate) runs_sequences: bool,
    /// Inputs that the daemon fills in for the requests of a sequence.
    #[serde(skip)]
    pub(crate) controls: Vec<Control>,
    /// Inputs as `config.pbtxt` declares them.
    #[serde(skip)]
    pub(crate) inputs: Vec<Declared>,
    /// Outputs as `config.pbtxt` declares them.
    #[serde(skip)]
    pub(crate) outputs: Vec<Declared>,
    /// What runs before the model takes requests.
    #[serde(skip)]
    pub(crate) warmup: Vec<Warmup>,
    /// The number of the GPU to load it on, if there is no `device`.
    #[serde(skip)]
    pub(crate) gpu: Option<u32>,
    /// The parameters of `config.pbtxt`, which clients can read.
    #[serde(skip)]
    pub(crate) parameters: BTreeMap<String, String>,
    /// What becomes of the fields of `config.pbtxt`.
    #[serde(skip)]
    pub(crate) notes: Vec<ConfigNote>,
}

/// An input or output as `config.pbtxt` declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) name: String,
    /// As in `TYPE_FP32`.
    pub(crate) data_type: Option<String>,
    /// What clients send or get, without the rows of a batch.
    pub(crate) dims: Option<Vec<i64>>,
    /// What the model gets or gives instead, without the rows of a batch.
    pub(crate) reshape: Option<Vec<i64>>,
    /// Whether the model has its value if clients do not send it.
    pub(crate) optional: bool,
}

/// A request that is run before a model takes others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Warmup {
    pub(crate) name: String,
    /// Rows of the request, for a model with `max_batch_size`; at least 1.
    pub(crate) rows: u32,
    /// How often it runs.
    pub(crate) runs: u32,
    pub(crate) inputs: Vec<WarmupInput>,
}

/// An input of such a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WarmupInput {
    pub(crate) name: String,
    /// As in `TYPE_FP32`.
    pub(crate) data_type: String,
    /// Without the rows of a batch.
    pub(crate) dims: Vec<i64>,
    pub(crate) data: WarmupData,
}

/// The elements of such an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WarmupData {
    Zeros,
    Random,
    /// A file in the folder `warmup` of the model.
    File(String),
}

/// How requests of a model are gathered into batches.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DynamicBatching {
    /// Whether requests are gathered; true if absent. If false, `max_batch_size` only limits the
    /// rows of a request.
    #[serde(default = "yes")]
    pub(crate) enabled: bool,
    /// Sizes of batches to prefer, in rows.
    #[serde(default)]
    pub(crate) preferred_batch_size: Vec<u32>,
    /// How long a request waits for others although the model is idle. If absent, the daemon
    /// chooses the delay from measurements.
    pub(crate) max_queue_delay_microseconds: Option<u64>,
    /// Whether real-time requests wait for others like best-effort ones; false if absent. If not,
    /// they wait only as far as their deadlines allow.
    #[serde(default)]
    pub(crate) real_time: bool,
}

impl Default for DynamicBatching {
    fn default() -> DynamicBatching {
        DynamicBatching {
            enabled: true,
            preferred_batch_size: Vec::new(),
            max_queue_delay_microseconds: None,
            real_time: false,
        }
    }
}

/// Hedging of a model's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HedgingSettings {
    /// The percentile of the measured times after which a request is sent to a second device: 50 to
    /// 99; 95 if absent.
    #[serde(default = "percentile")]
    pub(crate) percentile: u8,
    /// Most requests that are sent twice, in percent: 1 to 50; 5 if absent.
    #[serde(default = "extra_percent")]
    pub(crate) extra_percent: u8,
}

impl Settings {
    /// The configuration of hedging; `None` if requests are not hedged.
    pub(crate) fn hedging(&self) -> Option<HedgeConfig> {
        let HedgingSettings { percentile, extra_percent } = self.hedging?;
        Some(HedgeConfig { percentile, extra_per_mille: u32::from(extra_percent) * 10 })
    }

    /// The options of the engine for batches of a graph; `None` if the model has no `max_batch_size`,
    /// or if it runs sequences and the steps of several cannot run as one.
    pub(crate) fn batching_of(&self, graph: &KernelGraph) -> Option<BatchingOptions> {
        let is_gathered = graph.batch.is_some() && graph.session.is_empty();
        self.batching().filter(|_| is_gathered || !self.runs_sequences)
    }

    /// The options of the engine for batches; `None` if the model has no `max_batch_size`.
    pub(crate) fn batching(&self) -> Option<BatchingOptions> {
        let max_batch_size = self.max_batch_size?;
        let dynamic = self.dynamic_batching.clone().unwrap_or_default();
        Some(BatchingOptions {
            max_batch_size,
            gathers: dynamic.enabled,
            preferred: dynamic.preferred_batch_size,
            max_queue_delay: dynamic.max_queue_delay_microseconds.map(Duration::from_micros),
            real_time: dynamic.real_time,
        })
    }

    /// The fields of `config.pbtxt` that change how Triton serves the model and are not honoured.
    pub(crate) fn not_honoured(&self) -> impl Iterator<Item = &ConfigNote> {
        self.notes.iter().filter(|note| note.treatment == ConfigTreatment::NotHonoured)
    }

    fn check(self) -> Result<Settings, String> {
        if let Some(HedgingSettings { percentile, extra_percent }) = self.hedging
            && !((50..=99).contains(&percentile) && (1..=50).contains(&extra_percent))
        {
            return Err("hedging: percentile has to be 50 to 99, and extra_percent 1 to 50".into());
        }
        self.scaling.as_ref().map_or(Ok(()), ScalingSettings::check)?;
        match self.dynamic_batching.is_some() && self.max_batch_size.is_none() {
            true => Err("dynamic_batching needs max_batch_size".into()),
            false => Ok(self),
        }
    }

    /// The options of the compiler.
    pub(crate) fn of_model(&self) -> ModelOptions {
        ModelOptions { symbols: self.symbols.clone(), states: self.state.clone() }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            class: best_effort(),
            queue_capacity: None,
            device: None,
            symbols: SizeRanges::new(),
            state: States::None,
            session_idle_ms: None,
            generation: None,
            max_batch_size: None,
            dynamic_batching: None,
            response_cache: false,
            hedging: None,
            scaling: None,
            version_policy: VersionPolicy::default(),
            labels: BTreeMap::new(),
            timeout_us: None,
            default_priority: 0,
            decoupled: false,
            runs_sequences: false,
            controls: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            warmup: Vec::new(),
            gpu: None,
            parameters: BTreeMap::new(),
            notes: Vec::new(),
        }
    }
}

/// Why a settings file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub(crate) struct SettingsError {
    path: PathBuf,
    reason: String,
}

fn best_effort() -> Class {
    Class::BestEffort
}

fn percentile() -> u8 {
    95
}

fn extra_percent() -> u8 {
    5
}

fn yes() -> bool {
    true
}

fn class<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Class, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "real-time" => Ok(Class::RealTime),
        "best-effort" => Ok(Class::BestEffort),
        other => {
            Err(serde::de::Error::custom(format!("unknown class \"{other}\"; use \"real-time\" or \"best-effort\"")))
        }
    }
}

/// The path of Atoll's own settings file of a model.
fn own(source: &Source) -> PathBuf {
    match &source.folder {
        Some(folder) => folder.join("atoll.toml"),
        // A source has at least one version.
        None => source.versions.first().map(|version| version.path.with_extension("toml")).unwrap_or_default(),
    }
}

/// All files that may have the settings of a model.
pub(super) fn files(source: &Source) -> Vec<PathBuf> {
    [own(source)].into_iter().chain(source.folder.as_ref().map(|folder| folder.join("config.pbtxt"))).collect()
}

/// The first of the files with the settings of a model that exists.
pub(super) fn file(source: &Source) -> Option<PathBuf> {
    files(source).into_iter().find(|path| path.is_file())
}

/// Reads the settings of a model from what a load brought along, or else from the first settings
/// file that exists.
pub(super) fn read(source: &Source) -> Result<Settings, SettingsError> {
    if let Some(config) = &source.config {
        return triton::settings_of_json(config, &source.name)
            .map_err(|reason| SettingsError { path: "the load parameter `config`".into(), reason });
    }
    let own = own(source);
    if let Some(settings) =
        read_file(&own, |text| toml::from_str(text).map_err(|e| e.to_string()).and_then(Settings::check))?
    {
        return Ok(settings);
    }
    let parse = |text: &str| triton::settings(text, &source.name);
    let triton = source.folder.as_ref().map(|folder| read_file(&folder.join("config.pbtxt"), parse));
    Ok(triton.transpose()?.flatten().unwrap_or_default())
}

fn read_file(path: &Path, parse: impl Fn(&str) -> Result<Settings, String>) -> Result<Option<Settings>, SettingsError> {
    let failed = |reason: String| SettingsError { path: path.into(), reason };
    let bytes = match read_at_most(path, SETTINGS_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    // Less of the file could be read as other settings than all of it.
    if bytes.len() as u64 > SETTINGS_BYTES_MAX {
        return Err(failed(format!("the file is larger than {SETTINGS_BYTES_MAX} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|error| failed(error.to_string()))?;
    parse(&text).map(Some).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::scan::{Form, VersionFile};
    use atoll_kgraph::SizeRange;

    #[test]
    fn files_are_read_in_order_and_mistakes_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let flat = Source {
            name: "m".into(),
            versions: vec![VersionFile { number: 1, path: folder.path().join("m.onnx"), form: Form::Onnx }],
            folder: None,
            skipped: Vec::new(),
            config: None,
        };
        assert_eq!(read(&flat).unwrap(), Settings::default());
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write(
            "m.toml",
            "class = \"real-time\"\nqueue_capacity = 8\ndevice = \"host:1\"\nstate = \"h=hn\"\nsession_idle_ms = \
            5\n[symbols]\nseq = \"1..9\"",
        );
        let symbols = [("seq".to_owned(), SizeRange { min: 1, max: 9 })].into();
        let settings = Settings {
            class: Class::RealTime,
            queue_capacity: NonZeroUsize::new(8),
            device: Some("host:1".into()),
            symbols,
            state: "h=hn".parse().unwrap(),
            session_idle_ms: NonZeroU64::new(5),
            ..Settings::default()
        };
        assert_eq!((read(&flat).unwrap(), settings.batching()), (settings, None));
        write("m.toml", "max_batch_size = 8\n[dynamic_batching]\nmax_queue_delay_microseconds = 50");
        let options = read(&flat).unwrap().batching().unwrap();
        assert_eq!((options.max_batch_size.get(), options.gathers, options.real_time), (8, true, false));
        assert_eq!(options.max_queue_delay, Some(Duration::from_micros(50)));
        write("m.toml", "version_policy = \"specific:1,3\"");
        assert_eq!(read(&flat).unwrap().version_policy, VersionPolicy::Specific([1, 3].into()));
        write("m.toml", "response_cache = true");
        assert!(read(&flat).unwrap().response_cache);
        write("m.toml", "[hedging]\npercentile = 90");
        let config = HedgeConfig { percentile: 90, extra_per_mille: 50 };
        assert_eq!(read(&flat).unwrap().hedging(), Some(config));
        for (text, expected) in [
            ("[scaling]\nlatency_ms = 5\nmin_instances = 9", "scaling: at least 9 instances, and at most 8"),
            ("[hedging]\nextra_percent = 100", "extra_percent 1 to 50"),
            ("[hedging]\npercentile = 3", "percentile has to be 50 to 99"),
            ("class = \"urgent\"", "unknown class \"urgent\""),
            ("clas = 1", "clas"),
            ("queue_capacity = 0", "queue_capacity"),
            ("symbols = { n = -1 }", "not a range of sizes"),
            ("state = \"h\"", "names no states"),
            ("max_batch_size = 0", "max_batch_size"),
            ("version_policy = \"newest\"", "`newest` is no policy of versions"),
            ("[dynamic_batching]\nreal_time = true", "dynamic_batching needs max_batch_size"),
            ("max_batch_size = 2\n[dynamic_batching]\nwindow = 1", "window"),
        ] {
            write("m.toml", text);
            let message = read(&flat).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("m.toml"), "{message}");
        }
        let triton = Source { folder: Some(folder.path().into()), ..flat };
        write(
            "config.pbtxt",
            "dynamic_batching { priority_levels: 2 default_priority_level: 1 default_queue_policy { max_queue_size: 7 \
            } }",
        );
        let read_of_triton = read(&triton).unwrap();
        let settings = Settings {
            class: Class::RealTime,
            queue_capacity: NonZeroUsize::new(7),
            notes: read_of_triton.notes.clone(),
            ..Settings::default()
        };
        assert_eq!(read_of_triton, settings);
        write("atoll.toml", "");
        assert_eq!(read(&triton).unwrap(), Settings::default());
        write(
            "atoll.toml",
            &format!("response_cache = true\n{}", "# comment\n".repeat(SETTINGS_BYTES_MAX as usize / 8)),
        );
        let message = read(&triton).unwrap_err().to_string();
        assert!(message.contains("atoll.toml: the file is larger than 1048576 bytes"), "{message}");
    }
}
