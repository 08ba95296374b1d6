//! Tests of the configuration of tenants.

use super::*;
use atoll_engine::{Class, TenantBytes};
use atoll_store::Limit;

const TEXT: &str = r#"
    socket_mode = 0o660
    [default]
    object_bytes = "1K"
    [tenant.vision]
    uids = [1000, 1001]
    class = "best-effort"
    functions = 2
    device_bytes = "2G"
    best_effort_device_bytes = "1M"
    object_count = 7
    [tenant.speech]
    uids = [1002]
    object_bytes = 5
"#;

#[test]
fn users_are_their_tenants() {
    let access = Access::parse(TEXT, 500).unwrap();
    let who = |uid, wanted: Option<&str>| {
        access.principal(uid, wanted.map(|name| name.parse().unwrap())).map(|p| p.tenant.to_string())
    };
    assert_eq!(who(1001, None).as_deref(), Ok("vision"));
    assert_eq!(who(1001, Some("vision")).as_deref(), Ok("vision"));
    let denied = Denied::NotYours { uid: 1001, own: "vision".parse().unwrap() };
    for other in ["speech", "local", "unknown"] {
        assert_eq!(who(1001, Some(other)), Err(denied.clone()), "the answer does not reveal whether the tenant exists");
    }
    for own in [0, 500] {
        assert_eq!((who(own, None).as_deref(), who(own, Some("speech")).as_deref()), (Ok("local"), Ok("speech")));
    }
    assert_eq!(who(1003, None), Err(Denied::Unknown { uid: 1003 }));
    assert_eq!(who(1003, Some("vision")), Err(Denied::Unknown { uid: 1003 }));
    let open = Access::parse("allow_unknown = true", 500).unwrap();
    assert_eq!(open.principal(1003, None).unwrap().tenant.as_str(), "uid-1003");
    assert!(open.principal(1003, Some("uid-1004".parse().unwrap())).is_err());
}

#[test]
fn the_address_of_sessions_is_an_address_with_a_port() {
    let access = Access::parse("sessions = \"[::1]:8003\"\nsessions_plain = true", 500).unwrap();
    assert_eq!((access.sessions(), access.sessions_plain()), (Some("[::1]:8003".parse().unwrap()), true));
    assert_eq!(Access::parse("", 500).unwrap().sessions(), None);
    let access = Access::parse("sessions_keep_s = 0\nsessions_per_address = 3", 500).unwrap();
    assert_eq!((access.sessions_keep(), access.sessions_per_address()), (Duration::ZERO, 3));
    for wrong in ["sessions_keep_s = 3601", "sessions_keep_s = -1", "sessions_per_address = 0"] {
        assert!(Access::parse(wrong, 500).is_err(), "{wrong}");
    }
    for wrong in ["8003", "gpu-box:8003", "127.0.0.1"] {
        let error = Access::parse(&format!("sessions = \"{wrong}\""), 500).unwrap_err();
        assert!(error.contains("is not an IP address with a port"), "{error}");
    }
}

#[test]
fn limits_are_the_tenants_then_the_defaults() {
    let access = Access::parse(TEXT, 500).unwrap();
    let limits = |uid| access.principal(uid, None).unwrap().limits;
    let vision = limits(1000);
    assert_eq!((vision.class, vision.functions), (Class::BestEffort, 2));
    assert_eq!(vision.device, TenantBytes { all: 2 << 30, best_effort: 1 << 20 });
    let quotas = access.memory_quotas();
    assert_eq!((quotas.tenants[&"vision".parse().unwrap()], quotas.default), (vision.device, TenantBytes::UNLIMITED));
    assert_eq!(vision.objects.all, Limit { bytes: 1024, count: 7 });
    assert_eq!((limits(1002).objects.all.bytes, limits(500)), (5, TenantLimits::ALL));
    assert_eq!(access.socket_mode, 0o660);
}

#[test]
fn traces_and_shared_memory_are_settings() {
    let access = Access::parse("otlp_endpoint = \"http://c:4318/\"\notlp_sample_rate = 0.5", 500).unwrap();
    assert_eq!(access.otlp(), Some(&OtlpConfig::new("http://c:4318", 0.5).unwrap()));
    assert_eq!(Access::parse("", 500).unwrap().otlp(), None);
    for (text, says) in [
        ("otlp_sample_rate = 1", "needs otlp_endpoint"),
        ("otlp_endpoint = \"c:4318\"", "not an HTTP URL"),
        ("otlp_endpoint = \"http://c\"\notlp_sample_rate = 2", "not from 0 to 1"),
    ] {
        assert!(Access::parse(text, 500).unwrap_err().contains(says), "{text}");
    }
    let access = Access::parse("[tenant.vision]\nshared_memory = true\n[tenant.speech]", 500).unwrap();
    let may = |tenant: &str| access.of(tenant.parse().unwrap()).may_share_memory().is_ok();
    assert_eq!(["local", "vision", "speech", "other"].map(may), [true, true, false, false]);
    let access = Access::parse("[tenant.vision]\ncuda_shared_memory = true\n[tenant.speech]", 500).unwrap();
    let may = |tenant: &str| access.of(tenant.parse().unwrap()).may_share_cuda_memory().is_ok();
    assert_eq!(["local", "vision", "speech", "other"].map(may), [true, true, false, false]);
    assert!(access.of("vision".parse().unwrap()).may_share_memory().is_err(), "another right");
}

#[test]
fn limits_of_executors_are_read_and_checked() {
    let access = Access::parse(
        "[default]\ncpus = 2\nbundle_bytes = \"1K\"\n[tenant.a]\nexecutor_bytes = \"64M\"\n[tenant.b]\ncpus = 0.5",
        500,
    );
    let access = access.unwrap();
    let limits: Vec<_> =
        access.tenant_limits().map(|(_, limits)| (limits.executor_bytes, limits.cpus, limits.bundle_bytes)).collect();
    assert_eq!(limits, [(Some(64 << 20), Some(2.0), 1024), (None, Some(0.5), 1024)]);
    assert_eq!(access.default_limits().cpus, Some(2.0));
    for cpus in ["0", "-1", "nan", "inf", "0.001"] {
        let error = Access::parse(&format!("[tenant.a]\ncpus = {cpus}"), 500).unwrap_err();
        assert!(error.contains("is not a number of at least"), "{error}");
    }
}

#[test]
fn scaling_of_deployed_functions_is_read_and_checked() {
    let text = "[scaling.resize]\nlatency_ms = 50\n[scaling.\"team:f\"]\nlatency_ms = 9";
    let access = Access::parse(text, 500).unwrap();
    let of = |tenant: &str, name: &str| {
        let key = FunctionKey { tenant: tenant.parse().unwrap(), name: name.into() };
        access.scaling(&key).map(|settings| settings.latency_ms)
    };
    assert_eq!((of("local", "resize"), of("team", "f"), of("team", "resize")), (Some(50), Some(9), None));
    let error = Access::parse("[scaling.f]\nlatency_ms = 5\nmin_instances = 9", 500).unwrap_err();
    assert!(error.starts_with("[scaling.f]: scaling: at least 9 instances, and at most 8"), "{error}");
}

#[test]
fn prices_are_read_and_checked() {
    let access = Access::parse("[prices]\n\"host:0\" = 0.000021\ncuda = 1", 500).unwrap();
    assert_eq!(access.prices(), &BTreeMap::from([("host:0".into(), 21), ("cuda".into(), 1_000_000)]));
    let error = Access::parse("[prices]\nhost = -1", 500).unwrap_err();
    assert!(error.starts_with("[prices]: host: -1 is not a price"), "{error}");
}

#[test]
fn code_is_trusted_of_the_daemon_itself_and_of_whom_the_configuration_names() {
    let text = "[default]\ncompile_seconds = 9\n[tenant.vision]\ntrusted_code = true\ncompile_bytes = \"1M\"";
    let access = Access::parse(text, 500).unwrap();
    let code = |tenant: &str| access.limits(&tenant.parse().unwrap()).code();
    assert_eq!(["local", "vision", "other"].map(|tenant| code(tenant).trusted), [true, true, false]);
    assert_eq!(
        (code("vision").limits.time, code("other").limits.time),
        (Duration::from_secs(9), Duration::from_secs(9))
    );
    assert_eq!((code("vision").limits.memory_bytes, code("other").limits.memory_bytes), (1 << 20, 4 << 30));
    let strict = Access::parse("[tenant.local]\ntrusted_code = false", 500).unwrap();
    assert!(!strict.limits(&Tenant::default()).code().trusted, "the operator may distrust itself");
}

#[test]
fn rights_are_the_tenants_then_the_defaults() {
    let access = Access::parse(
        r#"
        allow_anonymous = "guest"
        auth_keys = "keys.json"
        [default]
        models = ["null"]
        [tenant.vision]
        models = ["resnet*", "speech:*"]
        certificates = ["cn:vision", "dns:vision.example"]
        [tenant.speech]
        model_control = true
        certificates = ["cn:speech"]
        "#,
        500,
    )
    .unwrap();
    let may = |tenant: &str, name: &str| access.of(tenant.parse().unwrap()).may_call_name(name).is_ok();
    for (tenant, name, expected) in [
        ("vision", "resnet50", true),
        ("vision", "null", false),
        ("vision", "speech:asr", true),
        ("vision", "vision:own", true),
        ("vision", "other:f", false),
        ("speech", "null", true),
        ("speech", "resnet50", false),
        ("speech", "speech:asr", true),
        ("guest", "null", true),
        ("guest", "vision:own", false),
        ("local", "resnet50", true),
        ("local", "vision:own", true),
    ] {
        assert_eq!(may(tenant, name), expected, "{tenant} {name}");
    }
    let controls = |tenant: &str| access.of(tenant.parse().unwrap()).may_control_models().is_ok();
    assert_eq!(["vision", "speech", "guest", "local"].map(controls), [false, true, false, true]);
    assert_eq!(access.anonymous().map(Tenant::as_str), Some("guest"));
    assert_eq!(access.auth_keys(), Some(Path::new("keys.json")));
    let of = |names: &[&str]| {
        let names: Vec<CertificateName> = names.iter().map(|name| name.parse().unwrap()).collect();
        access.of_certificate(&names).map(|principal| principal.tenant.to_string())
    };
    assert_eq!(of(&["cn:unknown", "dns:vision.example"]).as_deref(), Some("vision"));
    assert_eq!(of(&["cn:vision", "dns:vision.example"]).as_deref(), Some("vision"));
    assert_eq!(of(&["cn:vision", "cn:speech"]), None, "names of two tenants name none");
    assert_eq!((of(&["dns:vision"]), of(&[])), (None, None), "the kind of a name counts");
    let observes = |text: &str, tenant: &str| {
        let principal = Access::parse(text, 500).unwrap().of(tenant.parse().unwrap());
        principal.on_dashboard().sees_all_tenants
    };
    assert_eq!(["vision", "local"].map(|tenant| observes("", tenant)), [false, true]);
    let text = "[default]\nobserver = true\n[tenant.vision]\nobserver = false\n[tenant.local]\nobserver = false";
    assert_eq!(["vision", "speech", "local"].map(|tenant| observes(text, tenant)), [false, true, false]);
    let local = Access::parse("[tenant.local]\nmodels = [\"null\"]", 500).unwrap();
    let local = local.of(Tenant::default());
    assert!(local.may_call_name("null").is_ok() && local.may_call_name("resnet50").is_err());
}

#[test]
fn mistakes_are_named() {
    for (text, expected) in [
        ("[tenant.\"a b\"]", "`a b` is not a tenant name"),
        ("[tenant.a]\nuids = [1]\n[tenant.b]\nuids = [1]", "user 1 is listed in both [tenant.a] and [tenant.b]"),
        ("[tenant.a]\nobject_bytes = \"2X\"", "unknown unit `X`"),
        ("[tenant.a]\nclass = \"urgent\"", "urgent"),
        ("socket_mode = 0o777", "0o777"),
        ("what = 1", "what"),
        ("access_log = \"a\"\naccess_log_format = \"xml\"", "`xml`; choose `json` or `text`"),
        ("access_log_format = \"json\"", "needs access_log"),
        ("[default]\nobjects = 1", "objects"),
        ("[default]\nuids = [1]", "[default] must not have uids"),
        ("[default]\ncertificates = [\"cn:a\"]", "[default] must not have uids or certificates"),
        ("[tenant.a]\ncertificates = [\"a\"]", "[tenant.a]: `a` is not the name of a certificate"),
        (
            "[tenant.a]\ncertificates = [\"cn:x\"]\n[tenant.b]\ncertificates = [\"cn:x\"]",
            "certificate cn:x is listed in both [tenant.a] and [tenant.b]",
        ),
        ("[tenant.a]\nmodels = [\"\"]", "[tenant.a]: models has an entry of 0 bytes"),
        ("allow_anonymous = \"a b\"", "allow_anonymous: `a b` is not a tenant name"),
        ("[tenant.a]\nobjects = 1", "objects"),
        ("[tenant.a]\nquota_request = 1.5", "[tenant.a]: a quota request of 1.5"),
        ("[tenant.a]\nquota_request = 0.5\nquota_limit = 0.4", "[tenant.a]: the quota request 0.5 exceeds"),
        ("[tenant.a]\nquota_request = nan", "a quota request of NaN"),
        ("[tenant.a]\nquota_request = 0.1\nsm_partition = 130", "a partition of 130 %"),
        ("[tenant.a]\nquota_limit = 0.5", "need quota_request"),
        ("[default]\nquota_request = 0.5", "[default] must not have a share"),
        ("trusted_keys = [\"RWnonsense\"]", "trusted_keys: `RWnonsense` is not a public key"),
        ("[tenant.a]\ntrusted_code = 1", "trusted_code"),
    ] {
        let error = Access::parse(text, 0).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
