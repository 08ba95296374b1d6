//! The files of the driver: records of claims, what containers see of their leases, and the
//! specifications of the Container Device Interface (CDI), which the container runtime reads.

use crate::claim::{Record, folder};
use crate::names::{DRIVER, is_uid};
use atoll_client::LeaseReport;
use atoll_kubernetes::gift::Gift;
use serde_json::{Value, json};
use std::fs::{Permissions, create_dir_all, remove_dir_all, remove_file};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Version of CDI: the first one whose names of devices may begin with a digit.
const CDI_VERSION: &str = "0.5.0";

/// Class of the devices in CDI.
const CLASS: &str = "claim";

/// Beginning of the names of files that are being written.
const PARTIAL: &str = ".atoll-dra-";

/// How mounts are made.
const OPTIONS: [&str; 4] = ["ro", "nosuid", "nodev", "bind"];

/// The folders of the driver.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    claims: PathBuf,
    leases: PathBuf,
    cdi: PathBuf,
    gift: Gift,
}

impl Files {
    /// `plugin` is the driver's own folder, `cdi` that of the specifications of CDI. Makes the folders.
    ///
    /// # Errors
    /// Fails if a folder cannot be made.
    pub(crate) fn new(plugin: &Path, cdi: PathBuf, gift: Gift) -> io::Result<Files> {
        let files = Files { claims: plugin.join("claims"), leases: plugin.join("leases"), cdi, gift };
        for folder in [&files.claims, &files.leases, &files.cdi] {
            create_dir_all(folder)?;
        }
        Ok(files)
    }

    /// The records of earlier processes. One that cannot be read is left out and logged.
    ///
    /// # Errors
    /// Fails if the folder cannot be read.
    pub(crate) fn records(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in std::fs::read_dir(&self.claims)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let read = std::fs::read(&path).map_err(|error| error.to_string());
            let record = read.and_then(|text| {
                let record: Record = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
                let is_own = path.file_stem().is_some_and(|stem| stem == record.uid.as_str());
                if is_own && is_uid(&record.uid) { Ok(record) } else { Err("it is the record of another claim".into()) }
            });
            match record {
                Ok(record) => records.push(record),
                Err(error) => tracing::error!("{} is left out: {error}", path.display()),
            }
        }
        records.sort_by(|one, other| one.uid.cmp(&other.uid));
        Ok(records)
    }

    /// Removes the files of claims that have no record, and what interrupted writes have left. A record
    /// that cannot be read counts: the containers of its claim may start again.
    ///
    /// # Errors
    /// Fails if a folder cannot be read or a file cannot be removed.
    pub(crate) fn tidy(&self) -> io::Result<()> {
        let kept = names(&self.claims)?;
        let specifications = names(&self.cdi)?;
        let [before, after] = [format!("{DRIVER}-{CLASS}_"), ".json".into()];
        let of_specification = |name: &String| name.strip_prefix(&before)?.strip_suffix(&after).map(str::to_owned);
        let shown = specifications.iter().filter_map(of_specification).chain(names(&self.leases)?);
        for uid in shown.filter(|uid| is_uid(uid) && !kept.contains(&format!("{uid}{after}"))) {
            tracing::info!(claim = uid, "the claim has no record; its files are removed");
            self.hide(&uid)?;
        }
        for (folder, names) in [(&self.claims, kept), (&self.cdi, specifications)] {
            for name in names.iter().filter(|name| name.starts_with(PARTIAL)) {
                absent(remove_file(folder.join(name)))?;
            }
        }
        Ok(())
    }

    /// Stores a record.
    ///
    /// # Errors
    /// Fails if it cannot be written. What was stored before is still there then.
    pub(crate) fn save(&self, record: &Record) -> io::Result<()> {
        write(&self.claims.join(format!("{}.json", record.uid)), &serde_json::to_value(record)?)
    }

    /// Removes a record.
    ///
    /// # Errors
    /// Fails if it is there and cannot be removed.
    pub(crate) fn forget(&self, uid: &str) -> io::Result<()> {
        absent(remove_file(self.claims.join(format!("{uid}.json"))))
    }

    /// Shows a lease to containers, in the form of `atoll lease hold --lease-file`, or that there is
    /// none. A claim that containers do not see has no file.
    ///
    /// # Errors
    /// Fails if the file cannot be written or removed.
    pub(crate) fn show(&self, uid: &str, file: &str, lease: Option<&LeaseReport>) -> io::Result<()> {
        let path = self.leases.join(uid).join(file);
        let Some(lease) = lease else { return absent(remove_file(path)) };
        let mut content = serde_json::to_value(lease)?;
        content["url"] = self.gift.url.as_str().into();
        create_dir_all(self.leases.join(uid))?;
        write(&path, &content)
    }

    /// Makes the devices of a claim known to the container runtime, and returns their names.
    ///
    /// # Errors
    /// Fails if the specification cannot be written.
    pub(crate) fn expose(&self, record: &Record) -> io::Result<Vec<String>> {
        let leases = self.leases.join(&record.uid);
        create_dir_all(&leases)?;
        let mount =
            |host: &str, container: &str| json!({ "hostPath": host, "containerPath": container, "options": OPTIONS });
        let (mut devices, mut names) = (Vec::new(), Vec::new());
        for (number, part) in record.parts.iter().enumerate() {
            let mut mounts: Vec<Value> = self.gift.mounts.iter().map(|(host, to)| mount(host, to)).collect();
            if part.spec.is_some() {
                mounts.push(mount(&leases.to_string_lossy(), &folder(&record.name)));
            }
            let variables: Vec<String> = part.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let name = format!("{}-{number}", record.uid);
            names.push(format!("{DRIVER}/{CLASS}={name}"));
            devices.push(json!({ "name": name, "containerEdits": { "env": variables, "mounts": mounts } }));
        }
        // A specification without devices is not valid.
        if !devices.is_empty() {
            let kind = format!("{DRIVER}/{CLASS}");
            let specification = json!({ "cdiVersion": CDI_VERSION, "kind": kind, "devices": devices });
            write(&self.specification(&record.uid), &specification)?;
        }
        Ok(names)
    }

    /// The opposite of [`Files::expose`]: containers see nothing of the claim any more.
    ///
    /// # Errors
    /// Fails if a file is there and cannot be removed.
    pub(crate) fn hide(&self, uid: &str) -> io::Result<()> {
        absent(remove_file(self.specification(uid)))?;
        absent(remove_dir_all(self.leases.join(uid)))
    }

    fn specification(&self, uid: &str) -> PathBuf {
        self.cdi.join(format!("{DRIVER}-{CLASS}_{uid}.json"))
    }
}

/// Writes a file that other users may read, as a whole: readers never see a part.
fn write(path: &Path, content: &Value) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::Builder::new().prefix(PARTIAL).tempfile_in(folder)?;
    file.write_all(format!("{content:#}\n").as_bytes())?;
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// The names of the files of a folder.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}

/// What is not there need not be removed.
fn absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Part;
    use atoll_client::LeaseSpec;

    fn record() -> Record {
        let part = |spec| Part {
            request: "gpu".into(),
            pool: "p".into(),
            device: "d".into(),
            share_id: None,
            file: "gpu.json".into(),
            variables: vec![("A".into(), "b=c".into())],
            spec,
            ended: 0,
            lease: None,
        };
        let parts = vec![part(Some(LeaseSpec::default())), part(None)];
        Record { namespace: "apps".into(), name: "c".into(), uid: "7-a".into(), leaves: false, parts }
    }

    fn read(path: &Path) -> Value {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn records_are_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::new(&folder.path().join("p"), folder.path().join("cdi"), Gift::default()).unwrap();
        assert_eq!(files.records().unwrap(), []);
        files.save(&record()).unwrap();
        files.save(&Record { leaves: true, ..record() }).unwrap();
        let other = serde_json::to_string(&record()).unwrap();
        for (name, text) in [("broken.json", "{"), ("other.json", other.as_str())] {
            std::fs::write(folder.path().join("p/claims").join(name), text).unwrap();
        }
        assert_eq!(files.records().unwrap(), [Record { leaves: true, ..record() }]);
        files.forget("7-a").unwrap();
        files.forget("7-a").unwrap();
        assert_eq!(files.records().unwrap(), []);
    }

    #[test]
    fn the_container_runtime_finds_the_devices_of_a_claim() {
        let folder = tempfile::tempdir().unwrap();
        let (plugin, cdi) = (folder.path().join("p"), folder.path().join("cdi"));
        let mounts = vec![("/run/atoll".into(), "/run/a".into())];
        let files = Files::new(&plugin, cdi.clone(), Gift { mounts, ..Gift::default() }).unwrap();
        let names = files.expose(&record()).unwrap();
        assert_eq!(names, ["gpu.atoll.dev/claim=7-a-0", "gpu.atoll.dev/claim=7-a-1"]);
        let mount = |host: &str, container: &str| {
            let options = ["ro", "nosuid", "nodev", "bind"];
            json!({ "hostPath": host, "containerPath": container, "options": options })
        };
        let own = mount("/run/atoll", "/run/a");
        let leases = plugin.join("leases/7-a");
        let expected = json!({
            "cdiVersion": "0.5.0",
            "kind": "gpu.atoll.dev/claim",
            "devices": [
                {
                    "name": "7-a-0",
                    "containerEdits": {
                        "env": ["A=b=c"], "mounts": [own, mount(leases.to_str().unwrap(), "/run/atoll/claims/c")],
                    },
                },
                { "name": "7-a-1", "containerEdits": { "env": ["A=b=c"], "mounts": [own] } },
            ],
        });
        assert_eq!(read(&cdi.join("gpu.atoll.dev-claim_7-a.json")), expected);
        assert!(leases.is_dir());
        files.hide("7-a").unwrap();
        files.hide("7-a").unwrap();
        assert!(!leases.exists());
        assert_eq!(std::fs::read_dir(&cdi).unwrap().count(), 0);
        let none = Record { parts: Vec::new(), ..record() };
        assert_eq!(files.expose(&none).unwrap(), [""; 0]);
        assert_eq!(std::fs::read_dir(&cdi).unwrap().count(), 0);
    }

    #[test]
    fn what_belongs_to_no_claim_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (plugin, cdi) = (folder.path().join("p"), folder.path().join("cdi"));
        let files = Files::new(&plugin, cdi.clone(), Gift::default()).unwrap();
        for uid in ["kept", "gone", "unreadable"] {
            files.expose(&Record { uid: uid.into(), ..record() }).unwrap();
        }
        files.save(&Record { uid: "kept".into(), ..record() }).unwrap();
        let others = ["other.json", "gpu.atoll.dev-claim_a.b.json"].map(|name| cdi.join(name));
        let partial = [plugin.join("claims/.atoll-dra-x"), cdi.join(".atoll-dra-y")];
        for path in others.iter().chain(&partial).chain([&plugin.join("claims/unreadable.json")]) {
            std::fs::write(path, "{").unwrap();
        }
        files.tidy().unwrap();
        for (uid, is_kept) in [("kept", true), ("gone", false), ("unreadable", true)] {
            assert_eq!((files.specification(uid).exists(), files.leases.join(uid).exists()), (is_kept, is_kept));
        }
        assert!(others.iter().all(|path| path.exists()), "what another program has written stays");
        assert!(!partial.iter().any(|path| path.exists()));
    }

    #[test]
    fn containers_see_a_lease_while_it_is_valid() {
        let folder = tempfile::tempdir().unwrap();
        let gift = Gift { url: "http://d:8000".into(), ..Gift::default() };
        let files = Files::new(folder.path(), folder.path().join("cdi"), gift).unwrap();
        let lease = LeaseReport {
            lease: 7,
            epoch: 8,
            tenant: atoll_client::Tenant::default(),
            holder: "h".into(),
            function: "f".into(),
            instance: "lease-7".into(),
            device: "host:0".into(),
            class: None,
            sm_partition: 30.0,
            quota_request: 0.4,
            quota_limit: 0.8,
            gpu_mem: 1,
            real_time_slots: 0,
            ttl_s: 15,
            expires_in_ms: 15_000,
        };
        files.show("7-a", "gpu.json", None).unwrap();
        files.show("7-a", "gpu.json", Some(&lease)).unwrap();
        let path = folder.path().join("leases/7-a/gpu.json");
        let content = read(&path);
        assert_eq!((&content["instance"], &content["url"]), (&json!("lease-7"), &json!("http://d:8000")));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        files.show("7-a", "gpu.json", None).unwrap();
        assert!(!path.exists());
    }
}
