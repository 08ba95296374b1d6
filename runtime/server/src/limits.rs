//! All limits of the server, with the reason for each number.

pub use crate::control::limits::*;

use std::time::Duration;

/// Default limit of a request body: a batch of 128 images of 3 × 299 × 299 floats.
pub const BODY_BYTES_MAX_DEFAULT: usize = 128 << 20;

/// Most bytes of all request bodies that are being read or processed. Further requests are refused;
/// otherwise the kernel's OOM killer could end the daemon.
pub const BODIES_IN_FLIGHT_BYTES_MAX: usize = 1 << 30;

/// Open connections per port, if the limit of open files allows it ([`crate::ConnectionLimits`]).
/// Each costs a file descriptor and about 20 KiB.
pub const CONNECTIONS_MAX: usize = 8192;

/// How long the head of a request may take, from its first byte.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection without traffic, in HTTP/2 without requests, stays open. Longer than the
/// idle time of common client pools, so that clients close first.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Most requests of one HTTP/2 connection at the same time; the client has to wait with further
/// ones. Many programs share one connection among all their threads.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 1024;

/// Number of concurrent requests of all HTTP/2 connections of a port above which each connection may
/// have only [`STREAMS_SHARE`]. A request costs a task and some kilobytes. 16 connections with
/// [`STREAMS_PER_CONNECTION_MAX`] requests each reach this number.
pub const STREAMS_MAX: usize = 16_384;

/// Concurrent requests that each HTTP/2 connection may have, however many the others have. With
/// [`CONNECTIONS_MAX`] connections these are at most twice [`STREAMS_MAX`].
pub const STREAMS_SHARE: usize = 4;

/// Maximum number of HTTP/2 streams that a client has reset and the daemon has not accepted yet.
/// With more, the connection is closed: a client that opens and resets streams without pause ("rapid
/// reset") makes the daemon work for nothing.
pub const STREAMS_RESET_MAX: usize = 20;

/// Maximum number of streams of an HTTP/2 connection that the daemon resets because of invalid
/// frames, such as more bytes than were announced. With more, the connection is closed.
pub const STREAMS_BROKEN_MAX: usize = 1024;

/// Most bytes of the headers of an HTTP/2 request, in all its frames. A token and the headers that
/// proxies add need a tenth of it.
pub const HEADERS_BYTES_MAX: u32 = 16 << 10;

/// Most requests of one gRPC stream that run at the same time. The next one is read when one of
/// them is answered.
pub const REQUESTS_PER_STREAM_MAX: usize = 64;

/// Longest id of a request in bytes. Each answer has it, also that of each token of a model that
/// generates.
pub const REQUEST_ID_BYTES_MAX: usize = 1024;

/// Most parameters of a request, of a tensor or of an output over gRPC. Known clients send a tenth
/// of it.
pub const PARAMETERS_MAX: usize = 256;

/// Longest time in which a client reads nothing while the socket's buffers are full. Then the
/// connection is closed.
pub const WRITE_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Longest pause between two parts of a request body.
pub const BODY_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Longest silence of a gRPC stream of messages without a running request. After that, its connection
/// may be closed to make room for another client.
pub const STREAM_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Most regions of shared memory of the daemon; each of system shared memory holds a file descriptor.
pub const SHARED_REGIONS_MAX: usize = 2048;

/// Most regions of shared memory of one tenant: an input and an output for each of 256
/// requests at the same time.
pub const SHARED_REGIONS_PER_TENANT_MAX: usize = 512;

/// Most bytes of all regions of one tenant: four times the bytes of bodies that may be in flight.
/// It does not limit how much of `/dev/shm` outputs fill, because a tenant may register files one
/// after another. Only the size of `/dev/shm` does.
pub const SHARED_BYTES_PER_TENANT_MAX: u64 = 4 << 30;

/// Most open rings of all tenants together. Each has a thread.
pub const RINGS_MAX: usize = 64;

/// Most open rings of one tenant, so that a tenant cannot take all.
pub const RINGS_PER_TENANT_MAX: usize = 16;

/// Most bytes of the rings of one tenant: as many as [`BODIES_IN_FLIGHT_BYTES_MAX`].
pub const RING_BYTES_PER_TENANT_MAX: u64 = 1 << 30;

/// Capacity of a tenant's idle budget: the time for which the threads of its rings may be awake without
/// serving a request. Enough for the ten thousand pings of a benchmark.
pub const RING_IDLE_BURST: Duration = Duration::from_secs(1);

/// The idle budget refills by the elapsed time divided by this. So a tenant whose clients ping or ring
/// without pause uses a tenth of a CPU.
pub const RING_IDLE_DIVISOR: u32 = 10;

/// Longest key of a region in bytes: the longest name of a file, after the slash that `shm_open`
/// requires.
pub const SHARED_KEY_BYTES_MAX: usize = 256;

/// Longest name of a region in bytes.
pub const SHARED_REGION_NAME_BYTES_MAX: usize = 256;

/// Longest time in which a request body arrives. A body of [`BODY_BYTES_MAX_DEFAULT`] takes a tenth
/// of it at 100 Mbit/s.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(120);

/// Part of [`BODIES_IN_FLIGHT_BYTES_MAX`] that is reserved for bodies up to
/// [`SMALL_BODY_BYTES_MAX`], so that large bodies cannot starve small ones.
pub const SMALL_BODIES_IN_FLIGHT_BYTES: usize = 64 << 20;

/// Part of [`BODIES_IN_FLIGHT_BYTES_MAX`] that is reserved for requests of tenants that may do
/// real-time work: room for the largest body by default.
pub const REAL_TIME_BODIES_IN_FLIGHT_BYTES: usize = 128 << 20;

/// Largest body without tensors; also the largest body that counts as small.
pub const SMALL_BODY_BYTES_MAX: usize = 1 << 20;

/// Bodies up to this size are decoded on the thread that serves the connection. Decoding a larger
/// body would block that thread for more than about a millisecond.
pub const DECODE_INLINE_BYTES_MAX: usize = 1 << 20;

/// Most threads of the runtime's pool, on which work blocks.
pub const BLOCKING_THREADS_MAX: usize = 512;

/// Most of these threads that work for clients. The others are for metrics, health and the daemon's
/// own work.
pub const CLIENT_THREADS_MAX: usize = BLOCKING_THREADS_MAX - 64;

/// Most of these threads that work for one tenant, so that it takes seven tenants to delay others.
pub const TENANT_THREADS_MAX: usize = 64;

/// Most models in a repository. A longer index would not be readable.
pub const MODELS_MAX: usize = 4096;

/// How long requests that have found a version have to begin before it is unloaded: the time in which
/// most bodies are decoded.
pub const EXCHANGE_GRACE: Duration = Duration::from_millis(20);

/// How long a version that was replaced stays for its requests. Those that still wait after it get an
/// error, so that a load ends.
pub const EXCHANGE_WAIT_MAX: Duration = Duration::from_secs(30);

/// Most versions of a model that are considered. Each that is served takes room on a device.
pub const VERSIONS_MAX: usize = 64;

/// Most functions with metrics series of their own. Each has about forty series, so all have about
/// ten thousand, which one scrape and one dashboard can still handle.
pub const USAGE_FUNCTIONS_MAX: usize = 256;

/// Largest settings file of a model.
pub const SETTINGS_BYTES_MAX: u64 = 1 << 20;

/// Largest file of labels: a line of a hundred bytes for each of a hundred thousand classes.
pub const LABELS_BYTES_MAX: u64 = 10 << 20;

/// Most fields of a `config.pbtxt` that its explanation names.
pub const CONFIG_NOTES_MAX: usize = 128;

/// Most samples of `model_warmup` of a model.
pub const WARMUP_SAMPLES_MAX: usize = 64;

/// Most runs of a sample of `model_warmup`. Clocks and caches are warm after a few.
pub const WARMUP_RUNS_MAX: u32 = 1000;

/// Most bytes of the inputs of a sample of `model_warmup`: as many as a request may have.
pub const WARMUP_BYTES_MAX: u64 = 128 << 20;

/// Longest name of a field in a `config.pbtxt` in bytes; Triton's longest has 32. Each message keeps
/// its path, so a long name around many messages would take much memory.
pub const CONFIG_NAME_BYTES_MAX: usize = 64;

/// Deepest file that a load brings along, in components of its path. Triton's layout has two.
pub const LOAD_FILE_DEPTH_MAX: usize = 8;

/// Most files that a load brings along: as many as gRPC has parameters at most.
pub const LOAD_FILES_MAX: usize = 256;

/// Most values in a `config.pbtxt`. The largest ensemble that can be served has a tenth of it.
pub const CONFIG_FIELDS_MAX: usize = 16_384;

/// Most ensembles that are nested: the outermost calls one that calls another one, and so on.
pub const ENSEMBLES_DEPTH_MAX: usize = 8;

/// Deepest nesting of messages in a `config.pbtxt`. Triton's schema has five levels.
pub const SETTINGS_DEPTH_MAX: usize = 16;

/// Default size of the response cache in bytes. It keeps responses of models whose settings have
/// `response_cache`.
pub const RESPONSE_CACHE_BYTES_DEFAULT: u64 = 256 << 20;

/// Most bytes of compiled models in the cache. The least recently used are deleted first.
pub const CACHE_BYTES_MAX: u64 = 32 << 30;

/// Most bytes of code that was compiled from tenants' bundles in the cache: about a thousand large
/// models.
pub const CODE_CACHE_BYTES_MAX: u64 = 8 << 30;

/// Default limit of the time in which the kernels of a tenant's bundle compile. The largest model
/// that was measured (DenseNet-201) takes a minute on two cores.
pub const COMPILE_TIME_DEFAULT: Duration = Duration::from_secs(600);

/// Default limit of the memory that compiling a tenant's bundle takes.
pub const COMPILE_BYTES_DEFAULT: u64 = 4 << 30;

/// Largest signature of a bundle. Minisign writes about 300 bytes plus comments.
pub const SIGNATURE_BYTES_MAX: usize = 8 << 10;

/// Largest configuration file of the daemon, `atoll.toml`.
pub const CONFIGURATION_BYTES_MAX: u64 = 1 << 20;

/// Largest keys file: [`KEYS_MAX`] entries with notes of full length.
pub const KEY_FILE_BYTES_MAX: u64 = 8 << 20;

/// Most keys in a keys file. A tenant needs one or two, and a longer list is hard to manage.
pub const KEYS_MAX: usize = 8192;

/// Longest note of a key in bytes: a line of a table.
pub const KEY_NOTE_BYTES_MAX: usize = 256;

/// Largest PEM file: a bundle of all public authorities has 250 KiB.
pub const PEM_BYTES_MAX: u64 = 4 << 20;

/// Most patterns of models of one tenant.
pub const PATTERNS_MAX: usize = 1024;

/// Longest pattern of models in bytes. No name of a model is longer.
pub const PATTERN_BYTES_MAX: usize = 256;

/// Longest name of a deployed function in bytes, so that it fits a metric label and a table column.
pub const FUNCTION_NAME_BYTES_MAX: usize = 128;

/// Most open sessions of CUDA programs: each has a thread.
pub const CUDA_SESSIONS_MAX: u64 = 512;

/// Most open sessions of CUDA programs of one tenant, so that a tenant cannot take all.
pub const CUDA_SESSIONS_PER_TENANT_MAX: u64 = 256;

/// How often a session over the network checks whether its client's token has expired. A token that
/// was revoked ends its sessions as soon as the keys are read again.
pub const CUDA_TOKEN_INTERVAL: Duration = Duration::from_secs(60);

/// Silence on the connection of a session over the network after which the system asks whether the
/// other machine is still there; as pings of HTTP/2.
pub const CUDA_KEEPALIVE: Duration = Duration::from_secs(60);

/// How long that machine may leave such questions, or data, without an answer, before the
/// connection counts as lost: as long as it may read nothing.
pub const CUDA_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Default of how long a session over the network is kept without a connection. A proxy restarts, and
/// a laptop changes its network, in less time.
pub const CUDA_KEEP_DEFAULT: Duration = Duration::from_secs(30);

/// Longest time that the configuration may set for keeping a session without a connection. Such a
/// session still holds its memory.
pub const CUDA_KEEP_MAX: Duration = Duration::from_secs(3600);

/// How long the client of a session has to answer a keepalive probe, which is sent when another
/// connection presents the session's ticket.
pub const CUDA_ASK_TIME: Duration = Duration::from_secs(5);

/// Most tickets of sessions that have ended that the daemon remembers, to tell why they are no
/// longer valid.
pub const CUDA_ENDED_TICKETS_MAX: usize = 1024;

/// Most connections of one address to the port of CUDA sessions, if the configuration does not say:
/// as many as one tenant has sessions.
pub const CUDA_CONNECTIONS_PER_ADDRESS_DEFAULT: u32 = 256;

/// Longest time that the configuration may set for how long a session is idle before others may have
/// its memory.
pub const CUDA_SUSPEND_IDLE_MAX: Duration = Duration::from_secs(3600);

/// Host memory of suspended sessions, if the configuration does not say, in bytes: 16 sessions of the
/// default size.
pub const CUDA_HOST_BYTES_DEFAULT: u64 = 4 << 30;

/// Host memory of the suspended sessions of one tenant, if the configuration does not say, in bytes:
/// half of all, so that a tenant cannot take all.
pub const CUDA_HOST_BYTES_PER_TENANT_DEFAULT: u64 = 2 << 30;

/// How long a call of a program waits until a device has memory for its suspended session. Others
/// use their memory for less than that at a time, unless the devices are too small for all.
pub const CUDA_RESUME_TIME: Duration = Duration::from_secs(60);

/// Pause before such a call tries again.
pub const CUDA_RESUME_INTERVAL: Duration = Duration::from_millis(50);

/// How long `atoll session` waits for the running work of a session.
pub const CUDA_SUSPEND_TIME: Duration = Duration::from_secs(30);

/// Device memory of a session of a CUDA program that asks for no other size, in bytes.
pub const CUDA_BYTES_DEFAULT: u64 = 256 << 20;

/// Device memory of a session for variables of its modules, besides what the program allocates.
pub const CUDA_VARIABLES_BYTES: u64 = 8 << 20;

/// Maximum size in bytes of the code of CUDA programs that is kept for later sessions: images, and PTX
/// with the contents read from it.
pub const CUDA_WARM_BYTES_MAX: usize = 512 << 20;

/// Maximum size in bytes of the code of one tenant's CUDA programs that is kept for later sessions:
/// two of the largest images.
pub const CUDA_WARM_BYTES_PER_TENANT_MAX: usize = 128 << 20;

/// Maximum size in bytes of the stored functions of one tenant's open sessions. A session gets at
/// most half of what is left.
pub const CUDA_STORED_BYTES_PER_TENANT_MAX: u64 = 256 << 20;

/// Most PTX of the modules of a session in bytes; the same text counts once.
pub const CUDA_PTX_BYTES_MAX: usize = 64 << 20;

/// Most kernels that a session has loaded; each launch shape of a kernel counts.
pub const CUDA_FUNCTIONS_MAX: usize = 4096;

/// The collected calls of a session run once their copies and parameters have this many bytes. A
/// flush has device memory for its copies in addition to the session's.
pub const CUDA_FLUSH_BYTES_MAX: usize = 8 << 20;

/// The collected calls of a session run once there are this many.
pub const CUDA_FLUSH_CALLS_MAX: usize = 4096;

/// The collected calls of a session run once their launches have this many blocks. Each block has a
/// byte of progress.
pub const CUDA_FLUSH_BLOCKS_MAX: u64 = 1 << 20;

/// Most bytes of node names in one answer to a trace request. Further functions are sent without
/// node names. Enough for about a hundred large models, and a quarter of the largest message.
pub(crate) const TRACE_NODES_BYTES_MAX: usize = 1 << 20;

/// Largest manifest of a graph in bytes. A manifest of the largest graph takes a tenth of it.
pub const GRAPH_MANIFEST_BYTES_MAX: usize = 256 << 10;

/// Most futures of a tenant.
pub const FUTURES_MAX: usize = 64;

/// Most bytes of the outputs of all futures of a tenant. They are kept in memory.
pub const FUTURES_BYTES_MAX: usize = 64 << 20;

/// Most bytes of outputs of futures that are inputs of a tenant's calls at the same time. Each call
/// has a copy.
pub const FUTURE_INPUTS_BYTES_MAX: usize = 256 << 20;

/// How long the outputs of a future are kept after the end of its call.
pub const FUTURE_LIFETIME: Duration = Duration::from_secs(60);

/// How long the daemon remembers that a future was forgotten, for messages about it.
pub const FUTURE_TRACE_LIFETIME: Duration = Duration::from_secs(600);

/// Most bytes of the files of a graph, all together. Their text is sent in one message of the control
/// protocol.
pub const GRAPH_FILES_BYTES_MAX: usize = 5 << 19;

/// Largest manifest of a graph in bytes, with its files in base64.
pub const GRAPH_TEXT_BYTES_MAX: usize = GRAPH_MANIFEST_BYTES_MAX + GRAPH_FILES_BYTES_MAX / 3 * 4 + 4096;

/// Most bytes of the files of all graphs of a tenant. The daemon keeps them in memory.
pub const GRAPH_FILES_TENANT_BYTES_MAX: usize = 32 << 20;

/// Most graphs of a tenant. Each is a few kilobytes; the limit keeps lists short.
pub const GRAPHS_PER_TENANT_MAX: usize = 256;

/// Highest price of a device, in units of account per second. Costs are 64-bit numbers in units of
/// 10^-15, so at this price half an hour still fits. For a more expensive device, choose a larger
/// unit.
pub const PRICE_PER_SECOND_MAX: f64 = 10.0;

/// Most built-in stages of graphs of one class that compute at the same time. Stages with small
/// inputs are not counted.
pub const BUILTIN_STAGES_MAX: usize = 2;

/// Most lines of the access log that wait to be written; further ones are dropped. About a second
/// of a busy daemon.
pub const ACCESS_LOG_LINES_MAX: usize = 16_384;

/// How long a stopping daemon waits until the last lines of the access log are written. A disk
/// writes all waiting lines within a second.
pub const ACCESS_LOG_STOP_MAX: Duration = Duration::from_secs(5);

/// Most requests whose spans wait to be sent to the collector; further ones are dropped. They take
/// 3 MiB and are some seconds of a busy daemon.
pub const OTLP_REQUESTS_MAX: usize = 4096;

/// Most requests in one message to the collector: about 700 KiB, below the limit of common
/// collectors.
pub const OTLP_BATCH_MAX: usize = 512;

/// Time between two messages to the collector.
pub const OTLP_INTERVAL: Duration = Duration::from_millis(500);

/// Longest time in which the collector answers a message.
pub const OTLP_SEND_MAX: Duration = Duration::from_secs(10);

/// How long a stopping daemon waits until the last spans are sent.
pub const OTLP_STOP_MAX: Duration = Duration::from_secs(5);

/// Longest text from a client in a span, in characters.
pub const OTLP_TEXT_MAX: usize = 256;

/// Most events of a span.
pub const OTLP_EVENTS_MAX: usize = 64;

/// Most marks, one per [`OTLP_INTERVAL`], from which events are searched. The events of a request
/// that began before the oldest mark may be missing. The trace of a busy device does not reach back
/// that far.
pub const OTLP_MARKS_MAX: usize = 128;

/// Most batches of trace records that are read from a device for one message: all that its ring can
/// hold.
pub const OTLP_TRACE_READS_MAX: usize = 32;

/// Time between two snapshots of the dashboard. Values that change five times a second look live.
pub const DASHBOARD_INTERVAL: Duration = Duration::from_millis(200);

/// How long snapshots are still collected after the last viewer left, so that a viewer that
/// reconnects misses no event.
pub const DASHBOARD_LINGER: Duration = Duration::from_secs(10);

/// Most viewers of the dashboard at one time: a team and its screens.
pub const DASHBOARD_VIEWERS_MAX: usize = 32;

/// Most viewers of one tenant, so that one tenant cannot keep the others out.
pub const DASHBOARD_VIEWERS_PER_TENANT_MAX: usize = 16;

/// How long a stream of snapshots lasts. The page then reconnects, so a client whose key or right
/// was withdrawn loses its view within this time.
pub const DASHBOARD_STREAM_TIME: Duration = Duration::from_secs(60);

/// Longest time in which a viewer reads a snapshot. A slower page would show nothing live.
pub const DASHBOARD_STALL_MAX: Duration = Duration::from_secs(10);

/// Most rows of each list of a snapshot that grows with functions, instances or tenants. A longer
/// list is cut, and the snapshot has the number of missing rows. There are five such lists with
/// rows of 200 bytes to 1 KiB, so all together stay below 3 MiB.
pub const DASHBOARD_ROWS_MAX: usize = 512;

/// Most recent events in a snapshot, for each tenant and for all together: more than happen on a
/// busy device between two snapshots.
pub const DASHBOARD_EVENTS_MAX: usize = 64;

/// Most tenants whose events are kept. A new tenant replaces the one whose last event is oldest.
pub const DASHBOARD_EVENT_TENANTS_MAX: usize = 256;

/// Most batches of trace records that are read from a device for one snapshot. A busy host device
/// records two.
pub const DASHBOARD_TRACE_BATCHES_MAX: usize = 4;

/// Real-time slots of a device if the configuration does not set them. It is the number of launches
/// that a device queue holds, so the last real-time request waits for one kernel of each of the
/// others at most.
pub const REAL_TIME_SLOTS_DEFAULT: u32 = 4;

/// Most bytes of the id of a request for a lease, and of the name of a lease's holder: four UUIDs.
pub const LEASE_TEXT_BYTES_MAX: usize = 128;

/// Interval at which expired leases are ended. A tenth of the shortest time to live.
pub const LEASE_TICK: Duration = Duration::from_millis(500);
/// Longest time in the section `[scaling]` of a model, in milliseconds: a day.
pub const SCALING_MS_MAX: u64 = 86_400_000;

/// Shortest interval of autoscaling decisions about a model, in milliseconds: a few windows of the
/// shares.
pub const SCALING_INTERVAL_MS_MIN: u64 = 100;

/// How long a request without a deadline waits for the first instance of its model. An instance
/// starts within milliseconds if a device has room.
pub const SCALING_START_MAX: Duration = Duration::from_secs(30);

/// Longest time that a request waits for another instance to start, if the running instances would
/// keep it waiting longer than the target allows. An instance starts within milliseconds.
pub const SCALING_HOLD_MAX: Duration = Duration::from_millis(50);

/// Most requests of a class that wait for the first instance of one model. Each holds its inputs
/// meanwhile.
pub const SCALING_WAITING_MAX: usize = 256;

/// Interval at which the autoscaler retries the first instance of a model while no device has room.
pub const SCALING_RETRY: Duration = Duration::from_millis(100);

/// Interval at which draining instances are checked for requests.
pub const SCALING_DRAIN_EVERY: Duration = Duration::from_millis(100);

/// Interval at which the daemon looks for models that are autoscaled.
pub const SCALING_IDLE_EVERY: Duration = Duration::from_secs(1);

/// Most smaller sizes that are tried if no device has room for an instance, so that a decision
/// ends.
pub const SCALING_SMALLER_TRIES_MAX: usize = 8;
