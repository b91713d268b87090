//! The layout of everything on disk: the only file that knows the names of directories.

use std::path::{Path, PathBuf};

use model::{ApplicationName, BuildId, InstanceId, ReleaseId};

/// The directory `DATA`, with everything of one node.
#[derive(Clone, Debug)]
pub struct DataDirectory {
    root: PathBuf,
    sockets: PathBuf,
}

/// The suffix of the file beside a build's directory that says that it is built whole. Virtual
/// environments hard-code their path, so a release is built where it will run; a mark that is set
/// last tells a half-built one wherever a kill came.
pub const BUILT_ENDING: &str = ".built";
/// The suffix of the directory beside a build that is `$HOME` of what runs in it.
pub const HOME_ENDING: &str = ".home";

impl DataDirectory {
    /// Creates a layout; `root` is absolute. Sockets live elsewhere, as a socket's path ends at 107
    /// bytes: `runtime` is `$XDG_RUNTIME_DIR` or `/tmp/cortex-UID`.
    pub fn new(root: PathBuf, runtime: &Path) -> DataDirectory {
        let hash = blake3::hash(root.as_os_str().as_encoded_bytes()).to_hex();
        let sockets = runtime.join(&hash[..12]);
        DataDirectory { root, sockets }
    }

    /// Creates a layout like `new`, but where a node has run on `root` before, its sockets are
    /// where it put them: the caller's environment may name another runtime directory than the
    /// node's did.
    pub fn find(root: PathBuf, runtime: &Path) -> DataDirectory {
        let fresh = DataDirectory::new(root, runtime);
        match std::fs::read_link(fresh.sockets_link()) {
            Ok(sockets) if sockets.is_dir() => DataDirectory { sockets, ..fresh },
            _ => fresh,
        }
    }

    /// Returns the link that remembers where the sockets are.
    pub fn sockets_link(&self) -> PathBuf {
        self.root.join("sockets")
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    pub fn values(&self) -> PathBuf {
        self.root.join("values")
    }

    /// Returns the directory of large values of a store in etcd, by its identity: our own store's
    /// values are not its.
    pub fn etcd_values(&self, identity: &str) -> PathBuf {
        self.root.join("etcd").join(identity).join("values")
    }

    /// Returns the certificate that the Redis listener makes for itself.
    pub fn face_certificate(&self) -> PathBuf {
        self.root.join("redis-tls")
    }

    /// Returns the directory with the cluster that this node belongs to, and what proves it.
    pub fn cluster(&self) -> PathBuf {
        self.root.join("cluster")
    }

    /// Returns the directory of copies of the binary, by hash: shims outlive upgrades.
    pub fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// Returns the file with the options that the node was started with last.
    pub fn started(&self) -> PathBuf {
        self.root.join("started.json")
    }

    /// Returns the directory with one directory per process that a shim holds:
    /// `run/NAME/ID/{state,exit}.json`.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// Returns the directories in which every file is a key, or belongs to one.
    pub fn keys(&self) -> [PathBuf; 3] {
        [self.cluster(), self.face_certificate(), self.development()]
    }

    /// Returns the directory of the authority that vouches for names of this machine.
    pub fn development(&self) -> PathBuf {
        self.root.join("development")
    }

    /// Returns what else nobody but the owner may read: directories and single files.
    pub fn secrets(&self) -> [PathBuf; 8] {
        let etcd = self.root.join("etcd");
        let directories = [self.store(), self.values(), etcd, self.run(), self.root.join("apps")];
        let [store, values, etcd, run, apps] = directories;
        [store, values, etcd, run, apps, self.started(), self.lock(), self.node_log()]
    }

    /// Returns the directory with a file for each process from before that finishes what it has.
    pub fn finishing(&self) -> PathBuf {
        self.root.join("finishing")
    }

    /// Returns the log of a node in the background.
    pub fn node_log(&self) -> PathBuf {
        self.root.join("node.log")
    }

    /// Returns the file that is locked while a node runs on this directory.
    pub fn lock(&self) -> PathBuf {
        self.root.join("node.lock")
    }

    /// Returns the file with the addresses of all members. It has a directory of its own, which
    /// what closes them to applications watches.
    pub fn members(&self) -> PathBuf {
        self.root.join("members").join("addresses")
    }

    pub fn node_id(&self) -> PathBuf {
        self.root.join("node.id")
    }

    /// Returns the file with this node's roles, as given when it last started.
    pub fn roles(&self) -> PathBuf {
        self.root.join("node.roles")
    }

    /// Returns the package caches that all applications of this node share.
    pub fn shared_cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// Returns the file of the secret with which an application's processes come to the bus of
    /// this node.
    pub fn bus_token(&self, name: &ApplicationName) -> PathBuf {
        self.application(name).join("bus-token")
    }

    /// Returns the file of the port at which applications find the bus of this node.
    pub fn bus_port(&self) -> PathBuf {
        self.root.join("bus-port")
    }

    /// Returns the directory with one for each application.
    pub fn applications(&self) -> PathBuf {
        self.root.join("apps")
    }

    pub fn application(&self, name: &ApplicationName) -> PathBuf {
        self.applications().join(name.as_str())
    }

    /// Returns the directory in which the releases of one build run.
    pub fn build(&self, name: &ApplicationName, build: &BuildId) -> PathBuf {
        let kind = match build {
            BuildId::Content(_) => "builds",
            BuildId::Of(_) => "releases",
        };
        self.application(name).join(kind).join(build.to_string())
    }

    /// Returns the file that says that a build is whole.
    pub fn build_mark(&self, name: &ApplicationName, build: &BuildId) -> PathBuf {
        let mut mark = self.build(name, build).into_os_string();
        mark.push(BUILT_ENDING);
        mark.into()
    }

    /// Returns the `$HOME` of what runs in a build; each build has a new, empty one.
    pub fn home(&self, name: &ApplicationName, build: &BuildId) -> PathBuf {
        self.application(name).join("builds").join(format!("{build}{HOME_ENDING}"))
    }

    /// Returns the directories that hold builds: the second one is from before builds had names.
    pub fn builds(&self, name: &ApplicationName) -> [PathBuf; 2] {
        ["builds", "releases"].map(|kind| self.application(name).join(kind))
    }

    pub fn persist(&self, name: &ApplicationName) -> PathBuf {
        self.application(name).join("persist")
    }

    /// Returns the directory for files that are being fetched from the node that has them.
    pub fn incoming(&self, name: &ApplicationName) -> PathBuf {
        self.application(name).join("persist.incoming")
    }

    /// Returns the directory for the files that were here before another node got them.
    pub fn given_away(&self, name: &ApplicationName) -> PathBuf {
        self.application(name).join("persist.given")
    }

    /// Returns the directory for an application's temporary files.
    pub fn temporary(&self, name: &ApplicationName) -> PathBuf {
        self.application(name).join("tmp")
    }

    pub fn cache(&self, name: &ApplicationName) -> PathBuf {
        self.application(name).join("cache")
    }

    pub fn logs(&self, name: &ApplicationName) -> PathBuf {
        self.application(name).join("logs")
    }

    /// Returns the file with the output of one slot's processes: `logs/web.1.log`.
    pub fn instance_log(&self, instance: &InstanceId) -> PathBuf {
        self.logs(&instance.application).join(format!("{}.log", instance.label()))
    }

    /// Returns the file with what the platform itself says of an application.
    pub fn platform_log(&self, name: &ApplicationName) -> PathBuf {
        self.logs(name).join("cortex.log")
    }

    /// Returns the file with the output of build and release steps.
    pub fn build_log(&self, name: &ApplicationName, release: &ReleaseId) -> PathBuf {
        self.logs(name).join(format!("build.{release}.log"))
    }

    pub fn sockets(&self) -> &Path {
        &self.sockets
    }

    pub fn api_socket(&self) -> PathBuf {
        self.sockets.join("api")
    }

    /// Returns the socket where a process that runs the node hands over to the next one.
    pub fn handover_socket(&self) -> PathBuf {
        self.sockets.join("handover")
    }

    /// Returns a shim's socket; `id` is like those in `run()`, and hashed to stay short.
    pub fn shim_socket(&self, id: &str) -> PathBuf {
        self.sockets.join(format!("shim-{}", &blake3::hash(id.as_bytes()).to_hex()[..16]))
    }
}
