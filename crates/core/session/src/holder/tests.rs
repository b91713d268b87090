//! Both ends against each other over a wire that is cut, and each against frames that lie.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::SILENCE_MAX;
use crate::client::{Client, ClientAction};
use crate::frame::{Resume, SessionDecoder};

const SPEAK_BYTES: usize = 64;
const SIZE: Size = Size { rows: 24, columns: 80 };

/// A client, what holds the command, and the bytes that are under way between them.
struct World {
    now: Timestamp,
    client: Client,
    holder: Holder,
    /// Bytes to the holder and to the client, and what each side makes of them.
    up: BytesMut,
    down: BytesMut,
    up_decoder: SessionDecoder,
    down_decoder: SessionDecoder,
    connected: bool,
    attached: bool,
    /// What the command got, and what the client printed.
    got: Vec<u8>,
    printed: Vec<(OutputStream, u8)>,
    waiting: Vec<(OutputStream, u8)>,
    signals: Vec<u8>,
    effects: Vec<HolderEffect>,
}

impl World {
    fn new(terminal: bool, detached: bool) -> World {
        let now = Timestamp(1_000_000);
        World {
            now,
            client: Client::new(terminal.then_some(SIZE), now),
            holder: Holder::new(terminal, detached, "ana".into(), now),
            up: BytesMut::new(),
            down: BytesMut::new(),
            up_decoder: SessionDecoder::default(),
            down_decoder: SessionDecoder::default(),
            connected: false,
            attached: false,
            got: Vec::new(),
            printed: Vec::new(),
            waiting: Vec::new(),
            signals: Vec::new(),
            effects: Vec::new(),
        }
    }

    fn connect(&mut self) {
        self.cut();
        self.connected = true;
        self.client.connect(self.now, false, &mut self.up);
    }

    /// Loses whatever is under way.
    fn cut(&mut self) {
        self.client.cut();
        if self.attached {
            self.holder.cut(self.now);
        }
        (self.connected, self.attached) = (false, false);
        (self.up, self.down) = Default::default();
        (self.up_decoder, self.down_decoder) = Default::default();
    }

    fn speak(&mut self) {
        if self.connected {
            self.client.speak(self.now, &mut self.up, SPEAK_BYTES);
            self.holder.speak(&mut self.down, SPEAK_BYTES);
        }
    }

    fn deliver_up(&mut self, count: usize) {
        let count = count.min(self.up.len());
        let bytes = self.up.split_to(count);
        self.up_decoder.buffer().extend_from_slice(&bytes);
        while let Some(frame) = self.up_decoder.frame().expect("frames") {
            let mut effects = Vec::new();
            match frame {
                SessionFrame::Attach(attach) if !self.attached => {
                    let attached = self.holder.attach(self.now, &attach, "ana", &mut effects);
                    attached.expect("it may attach");
                    self.attached = true;
                }
                frame => {
                    self.holder.hear(self.now, frame, &mut effects).expect("it is in order");
                }
            }
            for effect in effects {
                match effect {
                    HolderEffect::Signal(signal) => self.signals.push(signal),
                    effect => self.effects.push(effect),
                }
            }
        }
    }

    fn deliver_down(&mut self, count: usize) {
        let count = count.min(self.down.len());
        let bytes = self.down.split_to(count);
        self.down_decoder.buffer().extend_from_slice(&bytes);
        while let Some(frame) = self.down_decoder.frame().expect("frames") {
            let action = self.client.hear(self.now, frame).expect("it is in order");
            if let Some(ClientAction::Print(stream, bytes)) = action {
                self.waiting.extend(bytes.iter().map(|byte| (stream, *byte)));
            }
        }
    }

    fn print(&mut self, count: usize) {
        let count = count.min(self.waiting.len());
        self.printed.extend(self.waiting.drain(..count));
        self.client.printed(count);
    }

    fn command_reads(&mut self, count: usize) {
        let count = count.min(self.holder.input().len());
        self.got.extend_from_slice(&self.holder.input()[..count]);
        self.holder.took(count);
        if self.holder.input_is_over() {
            self.holder.close_input();
        }
    }

    /// Goes on until nothing is under way any more.
    fn settle(&mut self) {
        if !self.connected && !self.client.has_all() {
            self.connect();
        }
        for _ in 0..10_000 {
            self.speak();
            if self.up.is_empty() && self.down.is_empty() && self.waiting.is_empty() {
                self.command_reads(usize::MAX);
                self.speak();
                if self.up.is_empty() && self.down.is_empty() {
                    return;
                }
            }
            self.deliver_up(usize::MAX);
            self.command_reads(usize::MAX);
            self.deliver_down(usize::MAX);
            self.print(usize::MAX);
        }
        panic!("it does not come to rest");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Type(Vec<u8>),
    Write(bool, Vec<u8>),
    Signal(u8),
    Up(usize),
    Down(usize),
    Read(usize),
    Print(usize),
    Cut,
    Connect,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop::collection::vec(any::<u8>(), 1..60);
    prop_oneof![
        3 => bytes().prop_map(Step::Type),
        3 => (any::<bool>(), bytes()).prop_map(|(error, bytes)| Step::Write(error, bytes)),
        1 => (1u8..30).prop_map(Step::Signal),
        5 => (1usize..80).prop_map(Step::Up),
        5 => (1usize..80).prop_map(Step::Down),
        3 => (1usize..40).prop_map(Step::Read),
        3 => (1usize..40).prop_map(Step::Print),
        1 => Just(Step::Cut),
        2 => Just(Step::Connect),
    ]
}

/// Performs the steps, comes to an end, and checks that everything came once and in order.
fn check(terminal: bool, steps: Vec<Step>) {
    let mut world = World::new(terminal, false);
    let (mut typed, mut written, mut signalled) = (Vec::new(), Vec::new(), Vec::new());
    for step in steps {
        match step {
            Step::Type(bytes) if bytes.len() <= world.client.room() => {
                world.client.type_in(&bytes);
                typed.extend(bytes);
            }
            Step::Write(error, bytes) if bytes.len() <= world.holder.room() => {
                let stream = if error { OutputStream::Error } else { OutputStream::Output };
                world.holder.print(stream, &bytes);
                written.extend(bytes.iter().map(|byte| (stream, *byte)));
            }
            Step::Signal(signal) if world.client.signal(signal) => signalled.push(signal),
            Step::Up(count) => world.deliver_up(count),
            Step::Down(count) => world.deliver_down(count),
            Step::Read(count) => world.command_reads(count),
            Step::Print(count) => world.print(count),
            Step::Cut => world.cut(),
            Step::Connect if !world.connected => world.connect(),
            _ => {}
        }
        world.speak();
    }
    world.client.end_input();
    world.settle();
    let mut effects = Vec::new();
    world.holder.finish(world.now, 7, "exit status 7".into(), &mut effects);
    world.settle();
    assert_eq!(world.got, typed);
    assert!(world.printed == written, "{} of {} bytes", world.printed.len(), written.len());
    assert_eq!(world.signals, signalled);
    assert_eq!(world.client.end().map(|end| end.code), Some(7));
    assert_eq!(world.effects.last(), Some(&HolderEffect::Forget));
}

proptest! {
    #[test]
    fn no_byte_is_lost_or_doubled_whatever_is_cut(
        terminal in any::<bool>(),
        steps in prop::collection::vec(step(), 0..200),
    ) {
        check(terminal, steps);
    }

    #[test]
    fn no_frames_harm_what_is_held(
        frames in prop::collection::vec(lie(), 0..40),
    ) {
        let mut world = World::new(false, false);
        world.connect();
        world.settle();
        world.holder.print(OutputStream::Output, b"what it printed");
        let mut effects = Vec::new();
        for frame in frames {
            let before = (world.holder.received(), world.holder.signals, world.holder.printed);
            if let SessionFrame::Attach(attach) = &frame {
                world.holder.attach(world.now, attach, "eve", &mut effects).ok();
            } else if world.holder.hear(world.now, frame, &mut effects).is_err() {
                let after = (world.holder.received(), world.holder.signals, world.holder.printed);
                prop_assert_eq!(before, after);
            }
            prop_assert!(world.holder.input().len() <= INPUT_WINDOW_BYTES);
            prop_assert!(world.holder.printed <= world.holder.log.end());
            world.holder.speak(&mut BytesMut::new(), SPEAK_BYTES);
        }
    }

    #[test]
    fn no_frames_harm_a_client(frames in prop::collection::vec(lie(), 0..40)) {
        let mut client = Client::new(None, Timestamp(0));
        let mut out = BytesMut::new();
        client.connect(Timestamp(0), true, &mut out);
        client.type_in(b"what was typed");
        for frame in frames {
            client.hear(Timestamp(0), frame).ok();
            client.speak(Timestamp(0), &mut out, SPEAK_BYTES);
            prop_assert!(client.room() <= INPUT_WINDOW_BYTES);
        }
    }
}

#[test]
fn a_client_that_is_still_printing_after_the_end_waits_for_nobody() {
    let mut client = Client::new(None, Timestamp(0));
    client.connect(Timestamp(0), false, &mut BytesMut::new());
    let attached = Attached {
        v: VERSION,
        attachment: 1,
        output: 0,
        input: 0,
        taken: 0,
        signals: 0,
        terminal: false,
        detached: false,
    };
    client.hear(Timestamp(0), SessionFrame::Attached(attached)).unwrap();
    let bytes = Bytes::from_static(b"pages of it");
    let end = SessionEnd { code: 0, how: String::new(), output: bytes.len() as u64 };
    client.hear(Timestamp(0), SessionFrame::Output { offset: 0, bytes }).unwrap();
    assert!(client.deadline().is_some());
    client.hear(Timestamp(0), SessionFrame::Exit(end)).unwrap();
    assert_eq!((client.end(), client.deadline()), (None, None), "it is not printed yet");
    assert!(client.tick(Timestamp(0).after(SILENCE_MAX * 2), &mut BytesMut::new()));
}

/// A frame whose numbers are near those that are right, or far from them.
fn lie() -> impl Strategy<Value = SessionFrame> {
    let number = || prop_oneof![4 => 0u64..20, 1 => Just(u64::MAX - 100)];
    let bytes = || prop::collection::vec(any::<u8>(), 1..20).prop_map(Bytes::from);
    let attach = prop::option::of((number(), number())).prop_map(|resume| {
        let resume = resume.map(|(attachment, received)| Resume { attachment, received });
        SessionFrame::Attach(Attach { v: VERSION, resume, size: None })
    });
    let attached =
        (number(), number(), number(), number()).prop_map(|(attachment, output, input, taken)| {
            let (v, signals, terminal, detached) = (VERSION, 0, false, false);
            SessionFrame::Attached(Attached {
                v,
                attachment,
                output,
                input,
                taken,
                signals,
                terminal,
                detached,
            })
        });
    prop_oneof![
        attach,
        attached,
        (number(), bytes()).prop_map(|(offset, bytes)| SessionFrame::Input { offset, bytes }),
        (number(), bytes()).prop_map(|(offset, bytes)| SessionFrame::Output { offset, bytes }),
        (number(), bytes()).prop_map(|(offset, bytes)| SessionFrame::Error { offset, bytes }),
        number().prop_map(SessionFrame::InputEnd),
        number().prop_map(SessionFrame::Printed),
        number().prop_map(SessionFrame::Skipped),
        (0u32..4, any::<u8>()).prop_map(|(place, signal)| SessionFrame::Signal { place, signal }),
        (number(), 0u32..4).prop_map(|(input, signals)| SessionFrame::Taken { input, signals }),
        number().prop_map(|output| {
            SessionFrame::Exit(SessionEnd { code: 0, how: String::new(), output })
        }),
        Just(SessionFrame::Started("x".into())),
        Just(SessionFrame::Done),
        Just(SessionFrame::Ping),
    ]
}

/// Cuts one conversation behind each byte of either direction.
#[test]
fn a_cut_behind_each_byte_changes_nothing() {
    for cut_up in [true, false] {
        for place in 0..800 {
            let mut world = World::new(false, false);
            world.connect();
            let (mut delivered, mut was_cut) = (0, false);
            for round in 0u8..12 {
                world.client.type_in(&[round; 20]);
                world.holder.print(OutputStream::Output, &[round; 30]);
                world.holder.print(OutputStream::Error, &[round; 3]);
                assert!(world.client.signal(round + 1));
                for _ in 0..4 {
                    world.speak();
                    let under_way = if cut_up { world.up.len() } else { world.down.len() };
                    if !was_cut && delivered + under_way >= place {
                        match cut_up {
                            true => world.deliver_up(place - delivered),
                            false => world.deliver_down(place - delivered),
                        }
                        was_cut = true;
                        world.cut();
                        world.connect();
                    }
                    delivered += under_way;
                    world.deliver_up(usize::MAX);
                    world.deliver_down(usize::MAX);
                    world.print(17);
                    world.command_reads(11);
                }
            }
            world.client.end_input();
            world.settle();
            assert!(was_cut, "{place}: {delivered} bytes");
            let rounds = |count: usize| (0u8..12).flat_map(move |n| std::iter::repeat_n(n, count));
            assert_eq!(world.got, rounds(20).collect::<Vec<_>>(), "{place}");
            let of = |stream| {
                let printed = world.printed.iter().filter(move |one| one.0 == stream);
                printed.map(|one| one.1).collect::<Vec<_>>()
            };
            assert_eq!(of(OutputStream::Output), rounds(30).collect::<Vec<_>>(), "{place}");
            assert_eq!(of(OutputStream::Error), rounds(3).collect::<Vec<_>>(), "{place}");
            assert_eq!(world.signals, (1..=12).collect::<Vec<_>>(), "{place}");
        }
    }
}

fn later(world: &mut World, wait: std::time::Duration) -> Vec<HolderEffect> {
    world.now = world.now.after(wait);
    let mut effects = Vec::new();
    world.holder.tick(world.now, &mut effects);
    effects
}

#[test]
fn a_session_that_was_cut_off_waits_and_then_hangs_up() {
    let mut world = World::new(true, false);
    world.connect();
    world.settle();
    world.cut();
    // What nobody has printed is kept, and the command waits.
    while world.holder.room() > 0 {
        let count = world.holder.room().min(DATA_BYTES_MAX);
        world.holder.print(OutputStream::Output, &vec![1; count]);
    }
    assert_eq!(later(&mut world, CUT_KEPT / 2), []);
    world.connect();
    world.settle();
    assert_eq!(world.printed.len(), OUTPUT_KEPT_BYTES);
    world.cut();
    assert_eq!(later(&mut world, CUT_KEPT), [HolderEffect::HangUp]);
    assert_eq!(world.holder.deadline(), None);
    let mut effects = Vec::new();
    world.holder.finish(world.now, 129, "killed".into(), &mut effects);
    assert_eq!(effects, [HolderEffect::Forget]);
}

#[test]
fn a_client_that_stays_silent_is_not_there() {
    let mut world = World::new(true, false);
    world.connect();
    world.settle();
    // Its pings are what counts.
    for _ in 0..400 {
        assert_eq!(later(&mut world, std::time::Duration::from_secs(5)), []);
        assert!(world.client.tick(world.now, &mut world.up));
        world.settle();
    }
    assert_eq!(later(&mut world, CUT_KEPT), [HolderEffect::HangUp]);
    let mut world = World::new(true, false);
    world.connect();
    world.settle();
    world.now = world.now.after(SILENCE_MAX);
    assert!(!world.client.tick(world.now, &mut world.up), "nothing was heard of the other end");
    // A client that waits for its own output to be read is not cut off for that.
    world.client.deaf(world.now);
    assert!(world.client.tick(world.now, &mut world.up));
}

#[test]
fn a_detached_session_goes_on_and_keeps_the_end_of_what_it_printed() {
    let mut world = World::new(false, true);
    for _ in 0..3 * OUTPUT_KEPT_BYTES / DATA_BYTES_MAX {
        assert_eq!(world.holder.room(), OUTPUT_KEPT_BYTES);
        world.holder.print(OutputStream::Output, &[3; DATA_BYTES_MAX]);
    }
    assert_eq!(later(&mut world, 10 * CUT_KEPT), []);
    world.connect();
    world.settle();
    assert_eq!(world.printed.len(), OUTPUT_KEPT_BYTES);
    // It leaves, and the command goes on; its end is told to whoever comes later.
    world.client.leave();
    world.settle();
    world.cut();
    world.holder.print(OutputStream::Output, b"more");
    let mut effects = Vec::new();
    world.holder.finish(world.now, 3, "exit status 3".into(), &mut effects);
    assert_eq!((effects.len(), world.effects.len()), (0, 0));
    world.client = Client::new(None, world.now);
    world.connect();
    world.settle();
    assert_eq!(world.client.end().map(|end| end.code), Some(3));
    assert!(world.printed.ends_with(&b"more".map(|byte| (OutputStream::Output, byte))));
    assert_eq!(world.effects, [HolderEffect::Forget]);
}

#[test]
fn somebody_else_goes_on_where_the_one_before_stopped() {
    let mut world = World::new(false, false);
    world.connect();
    world.client.type_in(b"one ");
    world.holder.print(OutputStream::Output, b"first ");
    world.settle();
    let before = std::mem::replace(&mut world.client, Client::new(None, world.now));
    world.connect();
    world.client.type_in(b"two");
    world.holder.print(OutputStream::Output, b"second");
    world.settle();
    assert_eq!(world.got, b"one two");
    let printed: Vec<u8> = world.printed.iter().map(|one| one.1).collect();
    assert_eq!(printed, b"first second");
    // The one before is told so when it comes back.
    let mut out = BytesMut::new();
    let mut client = before;
    client.connect(world.now, false, &mut out);
    let mut decoder = SessionDecoder::default();
    decoder.buffer().extend_from_slice(&out);
    let Ok(Some(SessionFrame::Attach(attach))) = decoder.frame() else { panic!() };
    let refused = world.holder.attach(world.now, &attach, "ana", &mut Vec::new());
    assert_eq!(refused, Err(SessionFrame::TakenOver("ana".into())));
}

#[test]
fn a_client_that_leaves_hangs_up() {
    let mut world = World::new(false, false);
    world.connect();
    world.settle();
    world.client.leave();
    world.settle();
    assert_eq!(world.effects, [HolderEffect::HangUp]);
}
