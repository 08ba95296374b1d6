//! The control socket from a user's view: a real daemon, the client crate, the command line, other
//! users, and malicious peers.

mod peers;

use crate::cuda::environment;
use crate::functions::{manifest, packed};
use crate::serve::{Daemon, atoll};
use anyhow::{Context, Result, bail, ensure};
use atoll_client::{Call, Client, ClientError, Content, DataType, Deploy, Digest, RefusalKind, Sealed, Tensor};
use atoll_tests::{python, stand_in};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A daemon with a control socket, its files, and the bundles of two functions.
pub(crate) struct Setup {
    folder: tempfile::TempDir,
    pub(crate) daemon: Daemon,
    options: Vec<String>,
}

impl Setup {
    pub(crate) fn start(options: &[&str], config: &str) -> Result<Setup> {
        Setup::start_in(tempfile::tempdir()?, options, config)
    }

    /// As [`Setup::start`], on a GPU, which is the stand-in driver.
    pub(crate) fn start_on_gpu(options: &[&str], config: &str) -> Result<Setup> {
        let folder = tempfile::tempdir()?;
        stand_in::install(folder.path())?;
        Setup::start_in(folder, options, config)
    }

    fn start_in(folder: tempfile::TempDir, options: &[&str], config: &str) -> Result<Setup> {
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755))?;
        std::fs::create_dir(folder.path().join("repository"))?;
        for function in ["affine", "faulty"] {
            packed(&manifest(function), &folder.path().join(function).with_extension("kg"))?;
        }
        let mut options: Vec<String> = options.iter().map(|option| option.to_string()).collect();
        if !config.is_empty() {
            let path = folder.path().join("atoll.toml");
            std::fs::write(&path, config)?;
            options.extend(["--config".into(), path.display().to_string()]);
        }
        let daemon = Setup::daemon(folder.path(), &options)?;
        Ok(Setup { folder, daemon, options })
    }

    fn daemon(folder: &Path, options: &[String]) -> Result<Daemon> {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let is_on_gpu = folder.join("libcuda.so.1").exists();
        let device: &[&str] =
            if is_on_gpu { &["--device", "cuda", "--memory-limit", "768M"] } else { &["--memory-limit", "256M"] };
        let variables = if is_on_gpu { environment(folder, "").to_vec() } else { Vec::new() };
        Daemon::start_in(&folder.join("repository"), folder, &[device, options.as_slice()].concat(), &variables)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("atoll.sock")
    }

    pub(crate) fn client(&self) -> Result<Client> {
        Ok(Client::connect(&self.socket())?)
    }

    pub(crate) fn client_of(&self, tenant: &str) -> Result<Client> {
        Ok(Client::connect_as(&self.socket(), Some(tenant.parse()?))?)
    }

    /// Kills the daemon with SIGKILL, and starts another one on its files.
    pub(crate) fn kill_and_restart(&mut self) -> Result<()> {
        self.daemon.signal(Signal::KILL)?;
        self.daemon = Setup::daemon(self.folder.path(), &self.options)?;
        Ok(())
    }

    /// As [`Setup::kill_and_restart`], with other options.
    pub(crate) fn kill_and_restart_with(&mut self, options: &[&str]) -> Result<()> {
        self.options = options.iter().map(|option| option.to_string()).collect();
        self.kill_and_restart()
    }

    /// Runs the command line against the daemon.
    fn atoll(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.command(arguments).output()?)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(atoll());
        command
            .args(arguments)
            .env("ATOLL_CONTROL_SOCKET", self.socket())
            .env_remove("ATOLL_LOG")
            .current_dir(self.folder.path());
        command
    }

    /// JSON output of the command line.
    pub(crate) fn json(&self, arguments: &[&str]) -> Result<serde_json::Value> {
        let output = self.atoll(&[arguments, &["--json"]].concat())?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

pub(crate) fn vector(values: impl IntoIterator<Item = f32>) -> Tensor {
    let values: Vec<f32> = values.into_iter().collect();
    Tensor::f32(&[values.len() as i64], &values)
}

/// `tests/functions/affine.toml`, as plain Rust.
pub(crate) fn affine(x: &Tensor, b: &Tensor) -> Tensor {
    vector(x.to_f32().into_iter().zip(b.to_f32()).map(|(x, b)| x.mul_add(3.0, b)))
}

pub(crate) fn refusal<T>(result: Result<T, ClientError>) -> Result<(RefusalKind, String)> {
    match result {
        Err(ClientError::Refused(refusal)) => Ok((refusal.kind, refusal.message)),
        Err(other) => bail!("not a refusal: {other}"),
        Ok(_) => bail!("it was done"),
    }
}

fn deploy_as(name: &str, private: bool) -> Deploy {
    Deploy { name: Some(name.into()), private, ..Deploy::default() }
}

#[test]
fn functions_and_objects_outlive_the_daemon() -> Result<()> {
    let mut setup = Setup::start(&[], "")?;
    let (x, b) = (vector((0..1000).map(|i| i as f32 / 7.0)), vector((0..1000).map(|i| -(i as f32))));
    let kept = {
        let mut client = setup.client()?;
        let deployed = client.deploy(&setup.path("affine.kg"), &Deploy::default())?;
        ensure!((deployed.name.as_str(), deployed.model.as_deref()) == ("affine", Some("affine")), "{deployed:?}");
        client.deploy(&setup.path("affine.kg"), &deploy_as("hidden", true))?;
        let mut team = setup.client_of("team")?;
        team.deploy(&setup.path("affine.kg"), &Deploy::default())?;
        let kept = client.put(&b, None)?;
        // Tensors of every size: in the frame, and in files.
        for n in [0, 1, 1000, 100_000] {
            let (x, b) = (vector((0..n).map(|i| i as f32)), vector((0..n).map(|i| 0.5 * i as f32)));
            let answer = client.invoke(Call::of("affine").input("x", x.clone()).input("b", b.clone()))?;
            ensure!(answer.tensor("y")? == &affine(&x, &b), "{n} elements");
        }
        kept
    };
    setup.kill_and_restart()?;
    let mut client = setup.client()?;
    let names: Vec<String> = client.functions()?.into_iter().map(|function| function.name).collect();
    ensure!(names == ["affine", "hidden"], "{names:?}");
    ensure!(client.get(kept)? == b);
    let objects = client.objects()?;
    ensure!(objects.len() == 1 && objects[0].digest == kept && objects[0].bytes == 4000, "{objects:?}");
    for function in ["affine", "hidden"] {
        let answer = client.invoke(Call::of(function).input("x", x.clone()).input("b", kept))?;
        ensure!(answer.tensor("y")? == &affine(&x, &b));
    }
    // Over HTTP: public functions under their names, and no private one.
    let index = setup.json(&["models", "--url", &setup.daemon.http])?;
    let served: Vec<_> = index
        .as_array()
        .context("a list")?
        .iter()
        .map(|model| (model["name"].as_str(), model["state"].as_str()))
        .collect();
    ensure!(served == [(Some("affine"), Some("READY")), (Some("team:affine"), Some("READY"))], "{index}");
    for (model, works) in
        [("affine", true), ("team:affine", true), ("hidden", false), ("local:affine", false), ("team:hidden", false)]
    {
        let output = setup.atoll(&[
            "infer",
            "--url",
            &setup.daemon.http,
            "--model",
            model,
            "--shape",
            "x=8",
            "--shape",
            "b=8",
        ])?;
        ensure!(output.status.success() == works, "{model}: {}", String::from_utf8_lossy(&output.stderr));
    }
    client.remove_function("affine")?;
    ensure!(
        refusal(client.invoke(Call::of("affine")))? == (RefusalKind::NotFound, "there is no function `affine`".into())
    );
    ensure!(!setup.atoll(&["infer", "--url", &setup.daemon.http, "--model", "affine"])?.status.success());
    client.remove_object(kept)?;
    setup.kill_and_restart()?;
    let mut client = setup.client()?;
    ensure!(client.functions()?.len() == 1 && client.objects()?.is_empty(), "what was removed stays removed");
    Ok(())
}

#[test]
fn chains_and_renames_give_what_single_calls_give() -> Result<()> {
    let setup = Setup::start(&[], "")?;
    let mut client = setup.client()?;
    client.deploy(&setup.path("affine.kg"), &Deploy::default())?;
    let (x, b) = (vector((0..300).map(|i| i as f32)), vector((0..300).map(|i| 1.0 / (1 + i) as f32)));
    let b_kept = client.put(&b, None)?;
    let chain = |x: Content| {
        Call::of("affine").input("x", x).input("b", b_kept).then("affine").take("x", "y").input("b", b_kept)
    };
    let expected = affine(&affine(&x, &b), &b);
    let answer = client.invoke(chain(x.clone().into()))?;
    ensure!(answer.outputs.len() == 1 && answer.tensor("y")? == &expected, "only the last result comes back");
    // The next call can use a stored result, and repeating the remembered call replaces contents
    // without sending the graph.
    let kept = client.invoke(chain(x.clone().into()).keep("y"))?.object("y")?;
    ensure!(kept == Digest::of(&expected.bytes) && client.get(kept)? == expected);
    let first = client.invoke(chain(x.clone().into()).remember())?;
    let plan = first.plan.context("it was remembered")?;
    let again = client.again(plan, &[(0, "x", kept.into()), (1, "b", x.clone().into())])?;
    ensure!(again.tensor("y")? == &affine(&affine(&expected, &b), &x));
    let (kind, message) = refusal(client.again(plan, &[]))?;
    ensure!(
        kind == RefusalKind::BadRequest && message == "function `affine` needs input `x`",
        "bytes are not remembered: {message}"
    );
    for (call, says) in [
        (chain(x.clone().into()).input("z", b_kept), "function `affine` has no input `z`; it has b, x"),
        (chain(x.clone().into()).send("z"), "function `affine` has no output `z`; it has y"),
        (
            Call::of("affine").input("x", x.clone()).input("b", Content::Output(0, "y".into())),
            "which is not an earlier function",
        ),
        (
            Call::of("affine").input("x", x.clone()).input("b", vector([1.0])),
            "input `x` is f32 [300]; the model takes f32 [n]; `n` is 1",
        ),
        (
            Call::of("affine").input("x", Tensor { datatype: DataType::Int32, ..x.clone() }).input("b", b_kept),
            "input `x` is i32 [300]; the model takes f32 [n]",
        ),
    ] {
        let (kind, message) = refusal(client.invoke(call))?;
        ensure!(kind == RefusalKind::BadRequest && message.contains(says), "{says}: {message}");
    }
    Ok(())
}

#[test]
fn a_tenant_sees_only_its_own_functions_and_objects() -> Result<()> {
    let setup = Setup::start(
        &[],
        "socket_mode = 0o666\n[tenant.a]\nuids = [21001]\n[tenant.b]\nuids = [21002]\nobject_count = 2\nobject_bytes \
        = \"4K\"\nfunctions = 1\ndevice_bytes = \"1M\"\nclass = \"best-effort\"",
    )?;
    let (mut a, mut b) = (setup.client_of("a")?, setup.client_of("b")?);
    a.deploy(&setup.path("affine.kg"), &deploy_as("secret", true))?;
    let x = vector([1.0, 2.0]);
    let object = a.put(&x, None)?;
    // Guessing a digest reveals nothing: an unknown object and one of another tenant are refused
    // with the same words.
    for guess in [object, Digest::of(b"nothing has these bytes")] {
        let same = (RefusalKind::NotFound, format!("there is no object {guess}"));
        ensure!(refusal(b.get(guess))? == same && refusal(b.remove_object(guess))? == same);
    }
    b.deploy(&setup.path("affine.kg"), &deploy_as("own", false))?;
    let stolen = Call::of("own").input("x", object).input("b", x.clone());
    ensure!(refusal(b.invoke(stolen))?.1 == format!("there is no object {object}"));
    ensure!(refusal(b.describe("secret"))? == (RefusalKind::NotFound, "there is no function `secret`".into()));
    ensure!(
        refusal(b.remove_function("secret"))?.0 == RefusalKind::NotFound
            && refusal(b.invoke(Call::of("secret")))?.0 == RefusalKind::NotFound
    );
    ensure!(b.objects()?.is_empty() && b.statistics()?.functions.iter().all(|function| function.name == "own"));
    // With the same bytes, b has the same object, and a's removal does not affect b.
    ensure!(b.put(&x, None)? == object);
    a.remove_object(object)?;
    ensure!(refusal(a.get(object))?.0 == RefusalKind::NotFound && b.get(object)? == x);
    // The limits of b.
    ensure!(
        refusal(b.put(&vector((0..1024).map(|i| i as f32)), None))?.1.contains("of object bytes, 8 of 4096 are used")
    );
    b.put(&vector([3.0]), None)?;
    ensure!(refusal(b.put(&vector([4.0]), None))?.0 == RefusalKind::Quota);
    let (kind, message) = refusal(b.deploy(&setup.path("affine.kg"), &deploy_as("second", false)))?;
    ensure!(kind == RefusalKind::Quota && message.contains("its limit of 1 functions"), "{message}");
    let large = vector((0..1 << 18).map(|i| i as f32));
    let (kind, message) = refusal(b.invoke(Call::of("own").input("x", large.clone()).input("b", large.clone())))?;
    ensure!(kind == RefusalKind::Quota && message.contains("tenant `b` has a quota of 1048576 bytes"), "{message}");
    ensure!(a.invoke(Call::of("secret").input("x", large.clone()).input("b", large)).is_ok(), "a has no quota");
    let urgent = Call::of("own").input("x", x.clone()).input("b", x.clone()).class(atoll_client::Class::RealTime);
    ensure!(refusal(b.invoke(urgent))?.0 == RefusalKind::Denied);
    ensure!(a.functions()?.len() == 1, "b could not remove it");
    other_users(&setup)
}

/// The kernel identifies peers, not their messages. Needs root, to become other users.
fn other_users(setup: &Setup) -> Result<()> {
    if !rustix::process::getuid().is_root() {
        atoll_tests::skip("only root can become another user");
        return Ok(());
    }
    let run = |uid: u32, arguments: &[&str]| -> Result<(bool, String)> {
        let output = setup.command(arguments).uid(uid).gid(uid).current_dir("/").output();
        let output = output.context("the program is in a folder that other users can enter")?;
        Ok((
            output.status.success(),
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)),
        ))
    };
    let (done, text) = run(21001, &["fn", "ls"])?;
    ensure!(done && text.contains("secret") && !text.contains("own"), "{text}");
    let (done, text) = run(21002, &["fn", "ls", "--json"])?;
    ensure!(done && text.contains("own") && !text.contains("secret"), "{text}");
    for tenant in ["a", "local", "unknown"] {
        let (done, text) = run(21002, &["fn", "ls", "--tenant", tenant])?;
        ensure!(!done && text.contains("user 21002 may act for tenant `b` only"), "{text}");
    }
    let (done, text) = run(21003, &["object", "ls"])?;
    ensure!(!done && text.contains("user 21003 is not assigned to a tenant"), "{text}");
    Ok(())
}

#[test]
fn a_full_disk_refuses_and_loses_nothing() -> Result<()> {
    let mut setup = Setup::start(&[], "")?;
    let mut client = setup.client()?;
    let before = client.put(&vector([1.0, 2.0]), None)?;
    let big = Sealed::of("test", &vec![7; 6 << 20])?;
    let limit = |bytes| {
        prlimit(
            Some(Pid::from_child(setup.daemon.process())),
            Resource::Fsize,
            Rlimit { current: bytes, maximum: None },
        )
    };
    limit(Some(4 << 20))?;
    let (kind, message) = refusal(client.put_bytes(&big, None))?;
    ensure!(kind == RefusalKind::Daemon && message.contains("is full"), "{message}");
    // The index cannot be written either, and every promised object is kept.
    limit(Some(4096))?;
    let mut promised = vec![before];
    for i in 0..20 {
        promised.extend(client.put(&vector([i as f32]), None).ok());
    }
    ensure!(refusal(client.deploy(&setup.path("affine.kg"), &Deploy::default()))?.0 == RefusalKind::Daemon);
    limit(None)?;
    let after = client.put_bytes(&big, None)?;
    client.deploy(&setup.path("affine.kg"), &Deploy::default())?;
    promised.push(after);
    setup.kill_and_restart()?;
    let mut client = setup.client()?;
    for digest in &promised {
        client.get(*digest)?;
    }
    ensure!(client.objects()?.len() == promised.len() && client.functions()?.len() == 1);
    let partial = std::fs::read_dir(setup.path("atoll/objects"))?.count();
    ensure!(partial == promised.len(), "{partial} files for {} objects", promised.len());
    // A file that was changed from outside is detected when it is read; the object is reported and
    // removed.
    std::fs::write(setup.path("atoll/objects").join(after.to_string()), vec![8; 6 << 20])?;
    setup.kill_and_restart()?;
    let mut client = setup.client()?;
    let (kind, message) = refusal(client.get(after))?;
    ensure!(kind == RefusalKind::Daemon && message.contains("was damaged and has been removed"), "{message}");
    ensure!(refusal(client.get(after))?.0 == RefusalKind::NotFound);
    Ok(())
}

#[test]
fn the_command_line_against_numpy() -> Result<()> {
    let setup = Setup::start(&[], "")?;
    let numpy = |script: &str| -> Result<()> {
        let output = Command::new(python()).args(["-c", script]).current_dir(setup.folder.path()).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    numpy(
        "import numpy as np; r = np.random.default_rng(1); [np.save(f'{n}.npy', r.random(500, dtype=np.float32)) for n \
        in 'xbc']",
    )?;
    let deployed = setup.json(&["fn", "deploy", "affine.kg", "--name", "f", "--class", "real-time"])?;
    ensure!(deployed["model"] == "f" && deployed["class"] == "real-time", "{deployed}");
    let put = setup.json(&["object", "put", "b.npy", "--class", "real-time"])?;
    let object = put[0]["digest"].as_str().context("a digest")?;
    setup.json(&["fn", "invoke", "f", "x=x.npy", &format!("b=@{object}"), "--save", "one"])?;
    setup.json(&["fn", "invoke", "f", "x=x.npy", "b=b.npy", "--then", "f:y=x", "1.b=c.npy", "--save", "two"])?;
    let kept = setup.json(&["fn", "invoke", "f", "x=x.npy", "b=b.npy", "--then", "f:y=x", "1.b=c.npy", "--keep"])?;
    let kept = kept["objects"]["y"].as_str().context("a digest")?.to_string();
    ensure!(setup.atoll(&["object", "get", &kept, "-o", "kept.npy"])?.status.success());
    let renamed = setup.atoll(&[
        "fn",
        "invoke",
        "f",
        "x=x.npy",
        "b=b.npy",
        "--rename",
        &format!("x=@{kept}"),
        "--save",
        "again",
    ])?;
    ensure!(renamed.status.success(), "{}", String::from_utf8_lossy(&renamed.stderr));
    numpy(
        "import numpy as np; from numpy.testing import assert_allclose as same
x, b, c = (np.load(f'{n}.npy').astype(np.float64) for n in 'xbc')
same(np.load('one/y.npy'), 3*x+b, rtol=1e-6)
same(np.load('two/y.npy'), 3*(3*x+b)+c, rtol=1e-6)
assert (np.load('kept.npy') == np.load('two/y.npy')).all()
same(np.load('again/y.npy'), 3*(3*(3*x+b)+c)+b, rtol=1e-6)",
    )?;
    let objects = setup.json(&["object", "ls"])?;
    ensure!(objects.as_array().is_some_and(|objects| objects.len() == 2), "{objects}");
    setup.json(&["object", "rm", object, &kept])?;
    for (arguments, code, says) in [
        (vec!["fn", "invoke", "f", "x=x.npy", "b=@12"], 2, "64 hexadecimal digits"),
        (vec!["fn", "invoke", "f", "x=x.npy", "z=1"], 2, "unknown input `z`; the inputs are 0.b, 0.x"),
        (vec!["fn", "invoke", "g"], 2, "there is no function `g`"),
        (vec!["fn", "invoke", "f", "--then", "f"], 2, "state which output becomes which input"),
        (vec!["fn", "deploy", "missing.kg"], 2, "missing.kg"),
        (vec!["fn", "deploy", "x.npy"], 2, "error: the uploaded file is not a usable bundle"),
        (vec!["fn", "deploy", "affine.kg", "--name", "../f"], 2, "is not a valid name"),
        (vec!["object", "get", &kept], 2, "there is no object"),
        (vec!["fn", "ls", "--control-socket", "nowhere.sock"], 1, "cannot reach a daemon at nowhere.sock"),
    ] {
        let output = setup.atoll(&arguments)?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(code) && message.contains(says),
            "{arguments:?}: {:?} {message}",
            output.status.code()
        );
    }
    ensure!(setup.json(&["fn", "rm", "f"])?["removed"][0] == "f");
    Ok(())
}

#[test]
fn the_example_of_the_client_does_what_it_says() -> Result<()> {
    let setup = Setup::start(&[], "")?;
    let mut example = Command::new(env!("CARGO_BIN_EXE_client_example"));
    example
        .arg(setup.path("affine.kg"))
        .args(["x", "y"])
        .env("XDG_RUNTIME_DIR", setup.folder.path())
        .env_remove("ATOLL_CONTROL_SOCKET");
    let output = example.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let says = ["deployed `affine` for local", "once: [16]", "never left the device: [16]"];
    ensure!(output.status.success() && says.iter().all(|part| text.contains(part)), "{output:?}");
    ensure!(setup.client()?.functions()?.is_empty(), "it removed what it deployed");
    Ok(())
}
