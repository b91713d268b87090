//! Tests of the agent with a real store and real processes, without shims: an instance dies and
//! comes back, an actor panics and takes over what runs.

use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use model::application::ProcessSpec;
use model::release::{ProcessRecipe, Recipe};
use model::value::ContentHash;
use model::{
    ApplicationSpec, Claim, Incarnation, InstanceId, InstanceState, ProcessType, Release,
    ReleaseId, Rollout, RolloutPhase, Timestamp, record,
};

use super::launcher::fake::FakeLauncher;
use super::*;
use os::layout::DataDirectory;
use runtime::faults::Fault;
use store::options::Options;

/// The maximum wait for a state; two cores are shared with other tests.
const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// The ports of all agents of this process, which must not give the same one twice.
static PORTS: LazyLock<Ports> = LazyLock::new(Ports::default);

fn app() -> ApplicationName {
    "shop".parse().unwrap()
}

/// One application all the time: another instant would be another one of its name.
const CREATED_AT: Timestamp = Timestamp(1);

fn context(directory: &Path) -> Arc<AgentContext> {
    context_with(directory, Arc::default())
}

fn context_with(directory: &Path, launcher: Arc<FakeLauncher>) -> Arc<AgentContext> {
    let layout = DataDirectory::new(directory.join("data"), directory);
    os::directory::private_directory(layout.root()).unwrap();
    let (clock, node) = (Clock::start(), "n1".parse::<NodeId>().unwrap());
    let store = store::open::open_alone(&layout, node.clone(), clock, Options::default()).unwrap();
    context_of(layout, clock, node, launcher, store)
}

fn context_of(
    layout: DataDirectory,
    clock: Clock,
    node: NodeId,
    launcher: Arc<FakeLauncher>,
    store: SharedStore,
) -> Arc<AgentContext> {
    let preparer = Preparer::new(
        layout,
        node.clone(),
        clock,
        store.clone(),
        launcher.clone(),
        std::env::var("PATH").unwrap_or_default(),
    );
    Arc::new(AgentContext {
        store,
        node,
        platform: String::new(),
        clock,
        faults: Faults::default(),
        launcher,
        preparer,
        ports: PORTS.clone(),
        registry: Registry::default(),
        placing: None,
        scheduled: Default::default(),
        one_offs: Default::default(),
        adopted: Arc::default(),
        shutting_down: AtomicBool::new(false),
        changes: Arc::default(),
    })
}

async fn push(context: &AgentContext) {
    let bytes = tar::Builder::new(Vec::new()).into_inner().unwrap();
    let source = ContentHash(*blake3::hash(&bytes).as_bytes());
    let id = ReleaseId { number: 1, node: context.node.clone() };
    let server = "python3 -m http.server $PORT --bind $HOST";
    let mut recipe = Recipe::default();
    let web = ProcessRecipe { command: server.into(), default_count: 1, ..Default::default() };
    recipe.processes.insert(ProcessType::web(), web);
    let release = Release {
        v: record::RECORD_VERSION,
        id: id.clone(),
        source,
        source_bytes: bytes.len() as u64,
        build: None,
        recipe,
        settings: Default::default(),
        created_at: context.clock.now(),
        author: "tester".into(),
        note: String::new(),
        revision: None,
        replaces: None,
        remark: None,
        takes_back: None,
        unknown: Default::default(),
    };
    let spec = ApplicationSpec::new(CREATED_AT);
    let mut rollout = Rollout::new(context.node.clone(), context.clock.now());
    rollout.target = Some(id.clone());
    rollout.phase = RolloutPhase::Requested;
    for (key, value) in [
        (TypedKey::Source(app(), source), bytes),
        (TypedKey::Release(app(), id), record::encode(&release)),
        (TypedKey::Spec(app()), record::encode(&spec)),
        (TypedKey::Rollout(app()), record::encode(&rollout)),
    ] {
        context.store.set(key.key(), value.into()).await.unwrap();
    }
}

async fn scale(context: &AgentContext, count: u32) {
    let mut spec = ApplicationSpec::new(CREATED_AT);
    let process = ProcessSpec { count, ..Default::default() };
    spec.processes.insert(ProcessType::web(), process);
    let key = TypedKey::Spec(app()).key();
    context.store.set(key, record::encode(&spec).into()).await.unwrap();
}

async fn ready(context: &AgentContext) -> Vec<Incarnation> {
    let prefix = model::key::instances_prefix(&app());
    let claims = context.store.prefix(&prefix).await.unwrap();
    let claims =
        claims.iter().map(|entry| record::decode::<Claim>(entry.value.inline().unwrap()).unwrap());
    let all = claims.flat_map(|claim| claim.incarnations);
    all.filter(|incarnation| incarnation.state == InstanceState::Ready).collect()
}

/// Returns the instances that are ready, once they are as wanted.
async fn until(
    context: &AgentContext,
    what: &str,
    wanted: impl Fn(&[Incarnation]) -> bool,
) -> Vec<Incarnation> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let ready = ready(context).await;
        if wanted(&ready) {
            return ready;
        }
        assert!(Instant::now() < deadline, "{what}: {ready:#?}");
        tokio::time::sleep(POLL).await;
    }
}

fn kill(incarnation: &Incarnation) {
    let pid = i32::try_from(incarnation.process.as_ref().unwrap().pid).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_dies_comes_back_and_shutdown_stops_all() {
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path());
    let (stop, stopping) = watch::channel(false);
    let agent = tokio::spawn(run(context.clone(), stopping));
    push(&context).await;
    let first = until(&context, "one is ready", |ready| ready.len() == 1).await.remove(0);
    kill(&first);
    let is_other = |ready: &[Incarnation]| ready.len() == 1 && ready[0].process != first.process;
    let second = until(&context, "another is ready", is_other).await.remove(0);
    stop.send(true).unwrap();
    tokio::time::timeout(DEADLINE, agent).await.unwrap().unwrap().unwrap();
    assert!(!os::observe::process::is_alive(second.process.as_ref().unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_up_is_stopped_although_the_disk_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let layout = DataDirectory::new(directory.path().join("data"), directory.path());
    os::directory::private_directory(layout.root()).unwrap();
    let (clock, node) = (Clock::start(), "n1".parse::<NodeId>().unwrap());
    let disk = Faults::default();
    let options = Options { unkept: model::key::note_unkept, ..Options::with_faults(disk.clone()) };
    let store = store::open::open_alone(&layout, node.clone(), clock, options).unwrap();
    let context = context_of(layout, clock, node, Arc::default(), store);
    let (stop, stopping) = watch::channel(false);
    let agent = tokio::spawn(run(context.clone(), stopping));
    push(&context).await;
    let first = until(&context, "one is ready", |ready| ready.len() == 1).await.remove(0);
    // The actor hears that nothing is wanted once nothing can be written any more.
    context.faults.arm("application.shop", Fault::Stall).unwrap();
    scale(&context, 0).await;
    disk.arm("store.extend", Fault::Error).unwrap();
    for size in [4000, 1] {
        let (value, mut written) = (bytes::Bytes::from(vec![b'v'; size]), 0);
        while context.store.set("junk".parse().unwrap(), value.clone()).await.is_ok() {
            written += 1;
            assert!(written < 10_000, "the log's file was to be full");
        }
    }
    context.faults.disarm("application.shop");
    // Nothing is in flight, which is told in memory.
    let instance = InstanceId { application: app(), process: ProcessType::web(), slot: 1 };
    let drained = TypedKey::Board(BoardKey::Drained(instance, first.generation)).key();
    let deadline = Instant::now() + DEADLINE;
    let is_alive = || os::observe::process::is_alive(first.process.as_ref().unwrap());
    while is_alive() {
        assert!(Instant::now() < deadline, "it runs on");
        let written = ready(&context).await.is_empty();
        // The record that it is gone takes less room, and may fit.
        assert!(!written || !is_alive(), "that it drains has room after all");
        context.store.set(drained.clone(), bytes::Bytes::from_static(b"1")).await.unwrap();
        tokio::time::sleep(POLL).await;
    }
    disk.disarm("store.extend");
    until(&context, "its end is written", |ready| ready.is_empty()).await;
    stop.send(true).unwrap();
    tokio::time::timeout(DEADLINE, agent).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_actor_that_panics_takes_over_what_runs() {
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path());
    let (stop, stopping) = watch::channel(false);
    let agent = tokio::spawn(run(context.clone(), stopping));
    push(&context).await;
    let first = until(&context, "one is ready", |ready| ready.len() == 1).await.remove(0);
    context.faults.arm("application.shop", Fault::PanicOnce).unwrap();
    scale(&context, 2).await;
    let both = until(&context, "two are ready", |ready| ready.len() == 2).await;
    // An armed point that was met is not armed any more.
    context.faults.check("application.shop").unwrap();
    assert!(both.iter().any(|one| one.process == first.process), "the first one was adopted");
    stop.send(true).unwrap();
    tokio::time::timeout(DEADLINE, agent).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destroyed_application_leaves_nothing_running() {
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path());
    let (_stop, stopping) = watch::channel(false);
    let agent = tokio::spawn(run(context.clone(), stopping));
    push(&context).await;
    let first = until(&context, "one is ready", |ready| ready.len() == 1).await.remove(0);
    context.store.delete(TypedKey::Spec(app()).key()).await.unwrap();
    until(&context, "none is left", |ready| ready.is_empty()).await;
    let layout = DataDirectory::new(directory.path().join("data"), directory.path());
    let builds = layout.builds(&app());
    let deadline = Instant::now() + DEADLINE;
    while builds.iter().any(|place| place.exists()) {
        assert!(Instant::now() < deadline, "the releases are removed");
        tokio::time::sleep(POLL).await;
    }
    assert!(!os::observe::process::is_alive(first.process.as_ref().unwrap()));
    agent.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_during_a_panic_is_known_to_the_next_actor() {
    let directory = tempfile::tempdir().unwrap();
    let launcher = Arc::new(FakeLauncher::default());
    launcher.paused.store(true, Ordering::Relaxed);
    let context = context_with(directory.path(), launcher.clone());
    let (stop, stopping) = watch::channel(false);
    let agent = tokio::spawn(run(context.clone(), stopping));
    push(&context).await;
    let deadline = Instant::now() + DEADLINE;
    while launcher.launches.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < deadline, "a launch begins");
        tokio::time::sleep(POLL).await;
    }
    context.faults.arm("application.shop", Fault::PanicOnce).unwrap();
    scale(&context, 1).await;
    while context.faults.is_armed("application.shop") {
        assert!(Instant::now() < deadline, "the actor panics");
        tokio::time::sleep(POLL).await;
    }
    // This is twice the pause before the next actor begins: it has read the records by then, if it
    // would.
    tokio::time::sleep(2 * ACTOR_PAUSE_MIN).await;
    launcher.paused.store(false, Ordering::Relaxed);
    until(&context, "one is ready", |ready| ready.len() == 1).await;
    assert_eq!(launcher.launches.load(Ordering::Relaxed), 1, "what came into being is used");
    assert_eq!(context.registry.all().len(), 1);
    stop.send(true).unwrap();
    tokio::time::timeout(DEADLINE, agent).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_specification_stops_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path());
    let (stop, stopping) = watch::channel(false);
    let agent = tokio::spawn(run(context.clone(), stopping));
    push(&context).await;
    let first = until(&context, "one is ready", |ready| ready.len() == 1).await.remove(0);
    let junk = bytes::Bytes::from_static(b"junk");
    context.store.set(TypedKey::Spec(app()).key(), junk).await.unwrap();
    // The next actor reads it as its first record.
    context.faults.arm("application.shop", Fault::PanicOnce).unwrap();
    meet_fail_point(&context).await;
    scale(&context, 2).await;
    let both = until(&context, "two are ready", |ready| ready.len() == 2).await;
    assert!(both.iter().any(|one| one.process == first.process), "the first one lived on");
    stop.send(true).unwrap();
    tokio::time::timeout(DEADLINE, agent).await.unwrap().unwrap().unwrap();
}

/// Makes the actor meet its fail point, and waits until it did.
async fn meet_fail_point(context: &AgentContext) {
    let deadline = Instant::now() + DEADLINE;
    while context.faults.is_armed("application.shop") {
        nudge(context, 1).await;
        assert!(Instant::now() < deadline, "the actor panics");
        tokio::time::sleep(POLL).await;
    }
}

/// Sends letters that change nothing.
async fn nudge(context: &AgentContext, count: u64) {
    let instance = InstanceId { application: app(), process: ProcessType::web(), slot: 9 };
    for _ in 0..count {
        let key = TypedKey::Board(BoardKey::Drained(instance.clone(), 1)).key();
        context.store.set(key, bytes::Bytes::from_static(b"1")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_actor_that_falls_behind_is_followed_by_another() {
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path());
    let (stop, stopping) = watch::channel(false);
    let agent = tokio::spawn(run(context.clone(), stopping));
    push(&context).await;
    let first = until(&context, "one is ready", |ready| ready.len() == 1).await.remove(0);
    context.faults.arm("application.shop", Fault::Stall).unwrap();
    nudge(&context, 2 * LETTERS_MAX as u64).await;
    // The old actor still ends: no second one may begin.
    scale(&context, 2).await;
    context.faults.disarm("application.shop");
    let both = until(&context, "two are ready", |ready| ready.len() == 2).await;
    assert!(both.iter().any(|one| one.process == first.process), "the first one lived on");
    stop.send(true).unwrap();
    tokio::time::timeout(DEADLINE, agent).await.unwrap().unwrap().unwrap();
    let alive = |one: &Incarnation| os::observe::process::is_alive(one.process.as_ref().unwrap());
    assert!(!both.iter().any(alive), "nothing is left");
}
