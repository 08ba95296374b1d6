//! Why requests are refused for lack of credentials, rights or quota.

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// No token and no client certificate, where one is needed.
    NoCredentials,
    /// A token that is malformed, unknown, revoked or expired. These share one reason, so that
    /// metrics do not help to guess tokens.
    BadToken,
    /// A valid client certificate that is not assigned to exactly one tenant.
    UnknownCertificate,
    /// A TLS handshake that failed: for example no client certificate, or one that is not valid.
    Handshake,
    /// A user of the control socket without a tenant, or one who asked to act for another tenant;
    /// also the client of a CUDA session over the network that asked for another tenant.
    User,
    /// The class of the request is above the tenant's highest class.
    Class,
    /// A model that the tenant may not call, whether it exists or not.
    Model,
    /// Loading and unloading of models by a tenant without `model_control`.
    ModelControl,
    /// Loading and unloading of models in a model control mode that does not allow it.
    ModelControlMode,
    /// Shared memory by a tenant without `shared_memory`.
    SharedMemory,
    /// CUDA shared memory by a tenant without `cuda_shared_memory`.
    CudaSharedMemory,
    /// Operation of the daemon by a principal that is not an operator, and changes to the settings of
    /// logs and traces by a tenant other than `local`.
    Operator,
    /// Leases of a tenant without `leases`.
    Lease,
    /// More invocations at one time than the tenant's quota.
    Invocations,
    /// A deployment beyond a quota of the tenant: functions, descriptors, bundles on disk, device
    /// memory, or time of the compiler.
    Deployment,
    /// An object or a kept output beyond the object quota of the tenant, or an answer while its clients
    /// hold too many files of earlier ones.
    Objects,
    /// A request from a web page of another site (`Origin`, `Sec-Fetch-Site`).
    Origin,
    /// A `Host` header with a name that is not allowed.
    Host,
    /// A control connection of a user who has as many as one user may have, a CUDA session of a
    /// tenant that has as many as one tenant may have, or a connection for one of an address that has
    /// as many as one address may have.
    Connections,
    /// A request over HTTP/2 of a connection that has more than its share, while the port has as many
    /// as it may have.
    Streams,
    /// File descriptors in frames beyond the limit for one user.
    Files,
    /// A CUDA session over the network whose client speaks another version or another protocol.
    Protocol,
    /// A ticket with which a CUDA session cannot go on: unknown, expired, of another tenant, or of a
    /// session that has a connection.
    Ticket,
}

impl Reason {
    pub(crate) const ALL: [Reason; 23] = [
        Reason::NoCredentials,
        Reason::BadToken,
        Reason::UnknownCertificate,
        Reason::Handshake,
        Reason::User,
        Reason::Class,
        Reason::Model,
        Reason::ModelControl,
        Reason::ModelControlMode,
        Reason::SharedMemory,
        Reason::CudaSharedMemory,
        Reason::Operator,
        Reason::Lease,
        Reason::Invocations,
        Reason::Deployment,
        Reason::Objects,
        Reason::Origin,
        Reason::Host,
        Reason::Connections,
        Reason::Streams,
        Reason::Files,
        Reason::Protocol,
        Reason::Ticket,
    ];

    /// Its name in metrics and error answers.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Reason::NoCredentials => "no_credentials",
            Reason::BadToken => "bad_token",
            Reason::UnknownCertificate => "unknown_certificate",
            Reason::Handshake => "handshake",
            Reason::User => "user",
            Reason::Class => "class",
            Reason::Model => "model",
            Reason::ModelControl => "model_control",
            Reason::ModelControlMode => "model_control_mode",
            Reason::SharedMemory => "shared_memory",
            Reason::CudaSharedMemory => "cuda_shared_memory",
            Reason::Operator => "operator",
            Reason::Lease => "lease",
            Reason::Invocations => "invocations",
            Reason::Deployment => "deployment",
            Reason::Objects => "objects",
            Reason::Origin => "origin",
            Reason::Host => "host",
            Reason::Connections => "connections",
            Reason::Streams => "streams",
            Reason::Files => "files",
            Reason::Protocol => "protocol",
            Reason::Ticket => "ticket",
        }
    }
}
