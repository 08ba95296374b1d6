use super::*;
use atoll_kgraph::{BundleContents, KernelGraph, TargetImage, write_bundle};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LIMITS: CompileLimits = CompileLimits { time: Duration::from_secs(1), memory_bytes: 1 << 20 };
const GUEST: CodeRights = CodeRights { trusted: false, limits: LIMITS };
const FRIEND: CodeRights = CodeRights { trusted: true, limits: LIMITS };

/// A bundle with the code `sent`, in a folder.
fn bundle(folder: &Path, name: &str, source: Option<&str>) -> Arc<Bundle> {
    let graph = KernelGraph { name: name.into(), format: atoll_kgraph::FORMAT_VERSION, ..KernelGraph::default() };
    let image = TargetImage { name: "host-x86-64-v3".into(), ..TargetImage::default() };
    let targets = vec![TargetContents { image, code: b"sent".to_vec(), ptx: None, source: source.map(str::to_owned) }];
    let path = folder.join(name);
    write_bundle(&path, &BundleContents { producer: "test".into(), graph: &graph, weights: vec![], targets }).unwrap();
    Bundle::open(&path).unwrap()
}

/// A compiler whose output is the code `made`; it fails if the source is `bad`.
#[derive(Default)]
struct Compiler(AtomicUsize);

impl CompilerService for Compiler {
    fn identity(&self) -> String {
        "toy".into()
    }

    fn compile(
        &self,
        _: &Path,
        _: &Path,
        _: &atoll_kgraph::ModelOptions,
        _: &dyn Fn(CompileProgress),
    ) -> Result<(), CompileFailure> {
        unreachable!("only bundles are compiled here")
    }

    fn recompile(
        &self,
        bundle: &Bundle,
        limits: CompileLimits,
        _: &dyn Fn(CompileProgress),
    ) -> Result<Vec<TargetContents>, CompileFailure> {
        assert_eq!(limits, LIMITS);
        self.0.fetch_add(1, Ordering::Relaxed);
        if bundle.source("host-x86-64-v3").unwrap().unwrap() == "bad" {
            return Err(CompileFailure("line 1".into()));
        }
        let image = bundle.target("host-x86-64-v3").unwrap().clone();
        Ok(vec![TargetContents { image, code: b"made".to_vec(), ptx: Some("text".into()), source: None }])
    }
}

struct Case {
    folder: tempfile::TempDir,
    compiler: Arc<Compiler>,
    runtime: tokio::runtime::Runtime,
}

impl Case {
    fn new() -> Case {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Case { folder: tempfile::tempdir().unwrap(), compiler: Arc::default(), runtime }
    }

    fn gate(&self, has_compiler: bool, keys: &[&str]) -> CodeGate {
        let compiler = has_compiler.then(|| self.compiler.clone() as Arc<dyn CompilerService>);
        CodeGate::new(compiler, TrustedKeys::parse(keys.iter().copied()).unwrap(), self.folder.path())
    }

    fn bundle(&self, name: &str, source: Option<&str>) -> Arc<Bundle> {
        bundle(self.folder.path(), name, source)
    }

    /// The code that runs.
    fn admit(
        &self,
        gate: &CodeGate,
        rights: CodeRights,
        bundle: &Arc<Bundle>,
        signature: Option<&str>,
    ) -> Result<String, CodeError> {
        let _context = self.runtime.enter();
        let tenant = "guest".parse().unwrap();
        let admitted = gate.admit(&tenant, rights, bundle.clone(), signature, &|_| ())?;
        assert_eq!(admitted.digest(), bundle.digest());
        Ok(String::from_utf8(admitted.code("host-x86-64-v3").unwrap().to_vec()).unwrap())
    }
}

#[test]
fn code_is_made_once_for_guests_and_taken_from_friends() {
    let case = Case::new();
    let bundle = case.bundle("a.kg", Some("good"));
    let gate = case.gate(true, &[]);
    assert_eq!(case.admit(&gate, GUEST, &bundle, None).unwrap(), "made");
    assert_eq!(case.admit(&gate, GUEST, &bundle, None).unwrap(), "made");
    assert_eq!(case.admit(&case.gate(true, &[]), GUEST, &bundle, None).unwrap(), "made");
    assert_eq!(case.admit(&gate, FRIEND, &bundle, None).unwrap(), "sent");
    assert_eq!(case.compiler.0.load(Ordering::Relaxed), 1);
    assert_eq!(case.admit(&gate, GUEST, &case.bundle("b.kg", Some("good")), None).unwrap(), "made");
    assert_eq!(case.compiler.0.load(Ordering::Relaxed), 2, "another bundle has other code");
}

#[test]
fn refusals_say_what_to_do() {
    let case = Case::new();
    let (with, without) = (case.bundle("a.kg", Some("good")), case.bundle("b.kg", None));
    let refused = |gate: CodeGate, bundle: &Arc<Bundle>| case.admit(&gate, GUEST, bundle, None).unwrap_err();
    let text = refused(case.gate(false, &[]), &with).to_string();
    assert!(text.contains("no compiler") && text.contains("`atoll sign`") && text.contains("[tenant.guest]"), "{text}");
    let text = refused(case.gate(true, &[]), &without).to_string();
    assert!(text.contains("no PTX from before the passes (for host-x86-64-v3)"), "{text}");
    let text = refused(case.gate(true, &[]), &case.bundle("c.kg", Some("bad"))).to_string();
    assert!(text.contains("were not compiled: line 1"), "{text}");
    assert_eq!(case.admit(&case.gate(false, &[]), FRIEND, &without, None).unwrap(), "sent");
}

#[test]
fn signatures_vouch_for_one_content_and_come_from_known_keys() {
    let case = Case::new();
    let [own, other] = [(); 2].map(|()| minisign::KeyPair::generate_unencrypted_keypair().unwrap());
    let public = own.pk.to_base64();
    let bundle = case.bundle("a.kg", None);
    let sign = |keys: &minisign::KeyPair, bundle: &Bundle| {
        minisign::sign(None, &keys.sk, bundle.signed_text().as_bytes(), None, None).unwrap().into_string()
    };
    // Signatures also work without a compiler.
    for has_compiler in [true, false] {
        let gate = case.gate(has_compiler, &[&other.pk.to_base64(), &public]);
        assert_eq!(case.admit(&gate, GUEST, &bundle, Some(&sign(&own, &bundle))).unwrap(), "sent");
        let wrong = sign(&own, &case.bundle("b.kg", None));
        let error = case.admit(&gate, FRIEND, &bundle, Some(&wrong)).unwrap_err();
        assert!(matches!(error, CodeError::Signature(BadSignature::Wrong { .. })), "{error}");
        let gate = case.gate(has_compiler, &[&public]);
        let error = case.admit(&gate, GUEST, &bundle, Some(&sign(&other, &bundle))).unwrap_err();
        assert!(matches!(error, CodeError::Signature(BadSignature::UnknownKey)), "{error}");
        for garbage in ["", "untrusted comment: x\nRW\n", &"x".repeat(1 << 20)] {
            let error = case.admit(&gate, GUEST, &bundle, Some(garbage)).unwrap_err();
            assert!(matches!(error, CodeError::Signature(BadSignature::Format(_))), "{error}");
        }
    }
    let whole = own.pk.to_box().unwrap().into_string();
    assert!(TrustedKeys::parse([whole.as_str()]).is_ok(), "a whole file is accepted too");
    assert!(TrustedKeys::parse(["RWabc"]).is_err());
}
