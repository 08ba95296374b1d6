//! All limits of the server, with the reason for each number.

use std::time::Duration;

/// Default limit of a request body: a batch of 128 images of 3 × 299 × 299 floats.
pub const BODY_BYTES_MAX_DEFAULT: usize = 128 << 20;

/// Limit of the bytes of all bodies that are being read or processed. Further requests are refused,
/// since the alternative is the kernel's OOM killer.
pub const BODIES_IN_FLIGHT_BYTES_MAX: usize = 1 << 30;

/// Open connections per port, if the limit of open files allows it ([`crate::ConnectionLimits`]).
/// Each costs a file descriptor and about 20 KiB.
pub const CONNECTIONS_MAX: usize = 8192;

/// How long the head of a request may take, from its first byte.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection without traffic, in HTTP/2 without requests, stays open. Longer than the
/// idle time of common client pools, so that clients close first.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Requests of one HTTP/2 connection at the same time; the client holds further ones back. Many
/// programs share one connection among all their threads.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 1024;

/// Bytes of the headers of an HTTP/2 request, in all its frames. A token and what proxies add need
/// a tenth of it.
pub const HEADERS_BYTES_MAX: u32 = 16 << 10;

/// Requests of one gRPC stream that run at the same time; the stream is read on when one is
/// answered.
pub const REQUESTS_PER_STREAM_MAX: usize = 64;

/// Parameters of a request, of a tensor or of an output over gRPC. Known clients send a tenth of
/// it.
pub const PARAMETERS_MAX: usize = 256;

/// How long a client may read nothing of what was sent to it, as far as the buffers of the system
/// are full.
pub const WRITE_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Longest pause between two parts of a request body.
pub const BODY_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Regions of system shared memory that the daemon keeps; each holds a file descriptor.
pub const SHARED_REGIONS_MAX: usize = 2048;

/// Regions of one tenant: an input and an output for each of 256 requests at the same time.
pub const SHARED_REGIONS_PER_TENANT_MAX: usize = 512;

/// Bytes of all regions of one tenant: a few rounds of the largest bodies that may be in flight.
/// Does not limit the files that outputs fill, since a tenant may register one after another: the
/// size of `/dev/shm` does.
pub const SHARED_BYTES_PER_TENANT_MAX: u64 = 4 << 30;

/// Longest key of a region in bytes: the longest name of a file, and the slash of `shm_open`.
pub const SHARED_KEY_BYTES_MAX: usize = 256;

/// Longest name of a region in bytes.
pub const SHARED_REGION_NAME_BYTES_MAX: usize = 256;

/// How long a request body may take to arrive. [`BODY_BYTES_MAX_DEFAULT`] takes a tenth of this at
/// 100 Mbit/s.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(120);

/// Part of [`BODIES_IN_FLIGHT_BYTES_MAX`] that is reserved for bodies up to
/// [`SMALL_BODY_BYTES_MAX`], so that large bodies cannot starve small ones.
pub const SMALL_BODIES_IN_FLIGHT_BYTES: usize = 64 << 20;

/// Largest body without tensors; also the largest body that counts as small.
pub const SMALL_BODY_BYTES_MAX: usize = 1 << 20;

/// Bodies up to this size are decoded on the thread that serves the connection. Decoding a larger
/// body would block that thread for more than about a millisecond.
pub const DECODE_INLINE_BYTES_MAX: usize = 1 << 20;

/// Models in a repository. Nothing displays a longer index usefully.
pub const MODELS_MAX: usize = 4096;

/// Versions of a model that are looked at. Each that is served takes room on a device.
pub const VERSIONS_MAX: usize = 64;

/// Functions with metrics of their own, per tenant and class. Each has about forty series, so all
/// have about ten thousand, which one scrape and one dashboard can still handle.
pub const USAGE_FUNCTIONS_MAX: usize = 256;

/// Largest settings file of a model.
pub const SETTINGS_BYTES_MAX: u64 = 1 << 20;

/// Largest file of labels: a line of a hundred bytes for each of a hundred thousand classes.
pub const LABELS_BYTES_MAX: u64 = 10 << 20;

/// Fields of a `config.pbtxt` of which it is said what becomes of them.
pub const CONFIG_NOTES_MAX: usize = 128;

/// Samples of `model_warmup` of a model.
pub const WARMUP_SAMPLES_MAX: usize = 64;

/// Runs of a sample of `model_warmup`: clocks and caches are warm after a few.
pub const WARMUP_RUNS_MAX: u32 = 1000;

/// Bytes of the inputs of a sample of `model_warmup`: as many as a request may have.
pub const WARMUP_BYTES_MAX: u64 = 128 << 20;

/// Values in a `config.pbtxt`. The largest ensemble that can be served has a tenth of it.
pub const CONFIG_FIELDS_MAX: usize = 16_384;

/// Nesting of messages in a `config.pbtxt`; Triton's schema has five levels.
pub const SETTINGS_DEPTH_MAX: usize = 16;

/// Default limit of the bytes of kept responses, of models whose settings have `response_cache`.
pub const RESPONSE_CACHE_BYTES_DEFAULT: u64 = 256 << 20;

/// Bytes of compiled models in the cache. The least recently used are deleted first.
pub const CACHE_BYTES_MAX: u64 = 32 << 30;

/// Bytes of code that was compiled for tenants' bundles in the cache: about a thousand large models.
pub const CODE_CACHE_BYTES_MAX: u64 = 8 << 30;

/// How long the kernels of a tenant's bundle may compile, unless the configuration says otherwise.
/// The largest model seen (DenseNet-201) takes a minute on two cores.
pub const COMPILE_TIME_DEFAULT: Duration = Duration::from_secs(600);

/// Memory that compiling a tenant's bundle may take, unless the configuration says otherwise.
pub const COMPILE_BYTES_DEFAULT: u64 = 4 << 30;

/// Largest signature of a bundle. Minisign writes about 300 bytes, and comments.
pub const SIGNATURE_BYTES_MAX: usize = 8 << 10;

/// Largest configuration file of the control socket.
pub const CONFIGURATION_BYTES_MAX: u64 = 1 << 20;

/// Largest keys file: [`KEYS_MAX`] entries with notes of full length.
pub const KEY_FILE_BYTES_MAX: u64 = 8 << 20;

/// Keys in a keys file. A tenant needs one or two, and a longer list is hard to manage.
pub const KEYS_MAX: usize = 8192;

/// Longest note of a key in bytes: a line of a table.
pub const KEY_NOTE_BYTES_MAX: usize = 256;

/// Largest PEM file: a bundle of all public authorities has 250 KiB.
pub const PEM_BYTES_MAX: u64 = 4 << 20;

/// Patterns of models that one tenant may have.
pub const PATTERNS_MAX: usize = 1024;

/// Longest pattern of models in bytes: no name of a model is longer.
pub const PATTERN_BYTES_MAX: usize = 256;

/// Longest name of a deployed function in bytes, so that it fits a metric label and a table column.
pub const FUNCTION_NAME_BYTES_MAX: usize = 128;

/// Open connections to the control socket. Further ones wait until one closes.
pub const CONTROL_CONNECTIONS_MAX: usize = 1024;

/// Open connections per user, so that one user cannot block the others.
pub const CONTROL_CONNECTIONS_PER_USER_MAX: usize = 256;

/// How long the rest of a frame may take after its first bytes, and how long a client may take to
/// read an answer. A second is already long for a local socket.
pub const FRAME_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest object and largest bundle that the control socket accepts.
pub const CONTENT_BYTES_MAX: u64 = 16 << 30;

/// Bytes of objects kept in memory.
pub const OBJECT_MEMORY_BYTES_DEFAULT: u64 = 1 << 30;

/// Bytes of node names in one trace answer; further functions are sent without them. Enough for
/// about a hundred large models, and a quarter of the largest message.
pub(crate) const TRACE_NODES_BYTES_MAX: usize = 1 << 20;

/// Largest manifest of a graph: what describes the largest graph takes a tenth of it.
pub const GRAPH_MANIFEST_BYTES_MAX: usize = 256 << 10;

/// Graphs of a tenant. Each is a few kilobytes; the limit keeps lists short.
pub const GRAPHS_PER_TENANT_MAX: usize = 256;

/// The highest price of a second on a device, in units of account. With it, the price of half an
/// hour fits 64 bits, in which a unit has 10^15 parts; dearer devices need a larger unit.
pub const PRICE_PER_SECOND_MAX: f64 = 10.0;

/// Built-in stages of graphs that compute at the same time, unless their inputs are small.
pub const BUILTIN_STAGES_MAX: usize = 2;

/// Lines of the access log that wait to be written; further ones are dropped. A second of a busy
/// daemon.
pub const ACCESS_LOG_LINES_MAX: usize = 16_384;

/// How long the end of the daemon waits until the last lines of the access log are written: a disk
/// takes all that may wait within a second.
pub const ACCESS_LOG_STOP_MAX: Duration = Duration::from_secs(5);

/// Requests whose spans wait to be sent to the collector; further ones are dropped. Some seconds of
/// a busy daemon, in 3 MiB.
pub const OTLP_REQUESTS_MAX: usize = 4096;

/// Requests in one message to the collector: about 700 KiB, below the limit of common collectors.
pub const OTLP_BATCH_MAX: usize = 512;

/// Time between two messages to the collector.
pub const OTLP_INTERVAL: Duration = Duration::from_millis(500);

/// How long the collector may take for a message.
pub const OTLP_SEND_MAX: Duration = Duration::from_secs(10);

/// How long the end of the daemon waits until the last spans are sent.
pub const OTLP_STOP_MAX: Duration = Duration::from_secs(5);

/// Characters of a text of a client in a span.
pub const OTLP_TEXT_MAX: usize = 256;

/// Events of a span.
pub const OTLP_EVENTS_MAX: usize = 64;

/// How far back, in intervals, a request may have begun whose events are looked for. The trace of a
/// busy device does not reach back as far.
pub const OTLP_MARKS_MAX: usize = 128;

/// Batches of trace records that are read from a device for one message: all that it keeps.
pub const OTLP_TRACE_READS_MAX: usize = 32;

/// Time between two snapshots of the dashboard. Bars and numbers that change five times a second
/// look live.
pub const DASHBOARD_INTERVAL: Duration = Duration::from_millis(200);

/// How long snapshots are collected after the last viewer left, so that one that asks again misses
/// no event.
pub const DASHBOARD_LINGER: Duration = Duration::from_secs(10);

/// Viewers of the dashboard at one time: a team and its screens.
pub const DASHBOARD_VIEWERS_MAX: usize = 32;

/// Viewers of one tenant, so that one tenant cannot keep the others out.
pub const DASHBOARD_VIEWERS_PER_TENANT_MAX: usize = 16;

/// How long a stream of snapshots lasts. The page asks again, so that a key or a right that was
/// withdrawn ends a view within this time.
pub const DASHBOARD_STREAM_TIME: Duration = Duration::from_secs(60);

/// How long a viewer may take to read a snapshot. A page that is so slow shows nothing live.
pub const DASHBOARD_STALL_MAX: Duration = Duration::from_secs(10);

/// Rows of each list of a snapshot that grows with functions, instances or tenants; a longer list
/// is cut, and the snapshot says so. There are five such lists, and rows have 200 bytes to 1 KiB, so
/// all of them stay below 3 MiB.
pub const DASHBOARD_ROWS_MAX: usize = 512;

/// Recent events that a snapshot has, of each tenant and of all: more than happen on a busy device
/// between two snapshots.
pub const DASHBOARD_EVENTS_MAX: usize = 64;

/// Tenants whose events are kept. The one without an event for longest is forgotten for another.
pub const DASHBOARD_EVENT_TENANTS_MAX: usize = 256;

/// Batches of trace records that are read from a device for one snapshot. A busy host device writes
/// two.
pub const DASHBOARD_TRACE_BATCHES_MAX: usize = 4;

/// Real-time slots of a device, if the configuration states none: as many real-time requests as a
/// device queue holds launches, so that the last one waits for no more than the others' current
/// kernels.
pub const REAL_TIME_SLOTS_DEFAULT: u32 = 4;

/// Bytes of the id of a request for a lease, and of the name of a lease's holder: four UUIDs.
pub const LEASE_TEXT_BYTES_MAX: usize = 128;

/// How often leases that were not renewed are looked for. A tenth of the shortest time to live.
pub const LEASE_TICK: Duration = Duration::from_millis(500);
/// Longest time in `[scaling]` of a model, in milliseconds: a day.
pub const SCALING_MS_MAX: u64 = 86_400_000;

/// Shortest time between two decisions on a model's instances, in milliseconds: a few windows of
/// the shares.
pub const SCALING_INTERVAL_MS_MIN: u64 = 100;

/// How long a request without a deadline waits for the first instance of its model. An instance
/// starts within milliseconds where there is room.
pub const SCALING_START_MAX: Duration = Duration::from_secs(30);

/// Requests that wait for the first instance of one model: each holds its inputs meanwhile.
pub const SCALING_WAITING_MAX: usize = 256;

/// How often the first instance of a model is tried while there is no room for it.
pub const SCALING_RETRY: Duration = Duration::from_millis(100);

/// How often instances that are to be removed are looked at while they have requests.
pub const SCALING_DRAIN_EVERY: Duration = Duration::from_millis(100);

/// How often it is looked for models that are scaled.
pub const SCALING_IDLE_EVERY: Duration = Duration::from_secs(1);

/// Smaller instances that are tried where there is no room for one: a decision must end.
pub const SCALING_SMALLER_TRIES_MAX: usize = 8;
