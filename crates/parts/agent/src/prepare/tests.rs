//! Tests of preparation with a real store and real steps, without shims.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use agent_core::application::StepFailure;
use model::release::{ProcessRecipe, Recipe, Step};
use model::value::ContentHash;
use model::{ReleaseId, Timestamp};

use super::*;
use crate::launcher::fake::FakeLauncher;
use crate::ports::Ports;
use store::options::Options;

const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

struct Bench {
    directory: tempfile::TempDir,
    layout: DataDirectory,
    store: SharedStore,
    launcher: Arc<FakeLauncher>,
    preparer: Preparer,
}

fn app() -> ApplicationName {
    "shop".parse().unwrap()
}

impl Bench {
    fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("data");
        let layout = DataDirectory::new(root, directory.path());
        let (clock, node) = (Clock::start(), "n1".parse::<NodeId>().unwrap());
        os::directory::private_directory(layout.root()).unwrap();
        let store =
            store::open::open_alone(&layout, node.clone(), clock, Options::default()).unwrap();
        let launcher = Arc::new(FakeLauncher::default());
        let preparer = Preparer::new(
            layout.clone(),
            node,
            clock,
            store.clone(),
            launcher.clone(),
            "/usr/bin:/bin".into(),
        );
        Bench { directory, layout, store, launcher, preparer }
    }

    async fn release(&self, number: u64, steps: &[&str]) -> Release {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_mode(0o644);
        builder.append_data(&mut header, "file", &b"text"[..]).unwrap();
        let bytes = builder.into_inner().unwrap();
        let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
        let source_bytes = bytes.len() as u64;
        self.store.set(TypedKey::Source(app(), hash).key(), bytes.into()).await.unwrap();
        let step = |(n, command): (usize, &&str)| Step {
            name: format!("Step {n}"),
            command: (*command).into(),
        };
        let mut recipe = Recipe {
            build: steps.iter().enumerate().map(step).collect(),
            path: vec!["own/bin".into()],
            persist: vec!["kept/".into()],
            environment: [("FROM", "recipe"), ("HOST", "recipe")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Recipe::default()
        };
        let web = ProcessRecipe { command: "run $PORT".into(), ..ProcessRecipe::default() };
        recipe.processes.insert(ProcessType::web(), web);
        Release {
            v: model::record::RECORD_VERSION,
            id: ReleaseId { number, node: "n1".parse().unwrap() },
            source: hash,
            source_bytes,
            build: None,
            recipe,
            settings: Default::default(),
            created_at: Timestamp(0),
            author: "tester".into(),
            note: String::new(),
            revision: None,
            replaces: None,
            remark: None,
            takes_back: None,
            unknown: Default::default(),
        }
    }

    fn path(&self, release: &Release) -> PathBuf {
        self.layout.build(&app(), &release.build_id())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_of_one_build_are_built_once_and_keep_what_each_of_them_persists() {
    let bench = Bench::new();
    let build = Some(BuildId::Content([1; 16]));
    let first = Release { build: build.clone(), ..bench.release(1, &["echo x >> made"]).await };
    let mut second = Release { build, ..bench.release(2, &["echo x >> made"]).await };
    second.recipe.persist.push("more/".into());
    for release in [&first, &second, &first] {
        bench.preparer.build(&app(), release).await.unwrap();
    }
    assert_eq!(bench.path(&first), bench.path(&second));
    let made = fs::read_to_string(bench.path(&first).join("made")).unwrap();
    assert_eq!(made, "x\n", "the step ran once");
    for kept in ["kept", "more"] {
        assert!(bench.path(&first).join(kept).is_symlink(), "{kept}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_built_once() {
    let bench = Bench::new();
    let release = bench.release(1, &["echo built >> kept/log", "test -f file"]).await;
    let app = app();
    let builds = (bench.preparer.build(&app, &release), bench.preparer.build(&app, &release));
    let (first, second) = tokio::join!(builds.0, builds.1);
    first.unwrap();
    second.unwrap();
    bench.preparer.build(&app, &release).await.unwrap();
    assert_eq!(fs::read_to_string(bench.path(&release).join("kept/log")).unwrap(), "built\n");
    assert_eq!(bench.launcher.launches.load(Ordering::Relaxed), 2, "each step once");
    let log = fs::read_to_string(bench.layout.build_log(&app, &release.id)).unwrap();
    assert!(log.contains("-----> Step 0\n") && log.contains("-----> Step 1\n"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_node_left_half_built_is_thrown_away() {
    let bench = Bench::new();
    let release = bench.release(1, &["test ! -e junk"]).await;
    fs::create_dir_all(bench.path(&release)).unwrap();
    fs::write(bench.path(&release).join("junk"), "").unwrap();
    bench.preparer.build(&app(), &release).await.unwrap();
    assert!(!bench.path(&release).join("junk").exists());
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !fs::read_to_string(mark(&bench.path(&release))).unwrap().ends_with(DURABLE) {
        assert!(tokio::time::Instant::now() < deadline, "the build reaches the disk");
        tokio::time::sleep(POLL).await;
    }
    // This one was built in another boot and is not known to have reached the disk.
    fs::write(mark(&bench.path(&release)), "another-boot").unwrap();
    fs::write(bench.path(&release).join("junk"), "").unwrap();
    bench.preparer.build(&app(), &release).await.unwrap();
    assert!(!bench.path(&release).join("junk").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_step_says_why_and_ends_the_build() {
    let bench = Bench::new();
    let release = bench.release(1, &["echo no such gem; exit 3", "touch kept/never"]).await;
    let failure: StepFailure = bench.preparer.build(&app(), &release).await.unwrap_err();
    assert!(failure.why.contains("Step 0") && failure.why.contains("exit status 3"), "{failure:?}");
    assert!(failure.last_words.contains("no such gem"), "{failure:?}");
    assert!(!bench.path(&release).join("kept/never").exists());
    assert!(!is_built(&bench.path(&release), &mark(&bench.path(&release))));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_is_the_platforms_then_the_recipes_then_the_users() {
    let bench = Bench::new();
    let mut release = bench.release(7, &[]).await;
    let config = [("FROM", "user"), ("CORTEX_NODE", "user")];
    let config: BTreeMap<_, _> = config.into();
    let key = TypedKey::ConfigAt(app(), release.id.clone()).key();
    bench.store.set(key, model::record::encode(&config).into()).await.unwrap();
    let instance = model::InstanceId { application: app(), process: ProcessType::web(), slot: 2 };
    let id = IncarnationId { instance, generation: 3 };
    let web = ProcessType::web();
    release.recipe.ports = vec![model::port::PortRecipe {
        id: model::PortId::udp(53),
        process: web.clone(),
        env: "DNS_PORT".into(),
        proxy_protocol: None,
        idle_ms: None,
    }];
    let taken = Ports::default().take_for(&release.recipe.ports, &web).unwrap();
    let (port, dns) = (taken.port.unwrap().to_string(), taken.ports[&model::PortId::udp(53)]);
    let spec = bench.preparer.launch_spec(&release, &web, &id, &taken).await.unwrap();
    assert_eq!(spec.ports, taken.ports);
    assert_eq!(spec.argv, ["/bin/sh", "-c", "exec run $PORT"]);
    for (name, value) in [
        ("PORT", port.as_str()),
        ("DNS_PORT", dns.to_string().as_str()),
        ("HOST", "127.0.0.1"),
        ("BIND_ADDRESS", "127.0.0.1"),
        ("LANG", "C.UTF-8"),
        ("FROM", "user"),
        ("CORTEX_NODE", "n1"),
        ("CORTEX_APPLICATION", "shop"),
        ("CORTEX_RELEASE", "v7"),
        ("CORTEX_RELEASE_ID", "v7.n1"),
        ("CORTEX_PROCESS", "web"),
        ("CORTEX_SLOT", "2"),
    ] {
        assert_eq!(spec.environment[name], value, "{name}");
    }
    let own = bench.path(&release).join("own/bin");
    assert_eq!(spec.environment["PATH"], format!("{}:/usr/bin:/bin", own.display()));
    assert!(Path::new(&spec.environment["HOME"]).is_dir());
    assert_eq!(spec.environment["SECRET_KEY_BASE"].len(), 128);
    let worker = "worker".parse().unwrap();
    let missing = bench.preparer.launch_spec(&release, &worker, &id, &taken).await;
    let missing = missing.unwrap_err();
    assert!(missing.to_string().contains("worker"), "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pruning_and_removal_leave_what_is_to_stay() {
    let bench = Bench::new();
    let (old, new) = (bench.release(1, &["echo 1 > kept/a"]).await, bench.release(2, &[]).await);
    for release in [&old, &new] {
        bench.preparer.build(&app(), release).await.unwrap();
    }
    bench.preparer.prune_builds(&app(), vec![new.build_id()], 1).await;
    assert!(!bench.path(&old).exists() && !mark(&bench.path(&old)).exists());
    assert!(is_built(&bench.path(&new), &mark(&bench.path(&new))));
    bench.preparer.remove_application(&app(), false).await;
    let left: Vec<_> = fs::read_dir(bench.layout.application(&app()))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["persist"]);
    assert!(bench.layout.persist(&app()).join("kept/a").exists());
    assert!(bench.directory.path().exists());
}
