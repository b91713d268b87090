//! The filter of system calls. What ordinary programs never call and faults of kernels were often
//! found in is refused: the list is that of flatpak and Docker, where both agree.

use std::collections::BTreeMap;

use libc::*;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

const REFUSED: &[c_long] = &[
    SYS_acct,
    SYS_add_key,
    SYS_bpf,
    SYS_chroot,
    SYS_clock_adjtime,
    SYS_clock_settime,
    SYS_delete_module,
    SYS_fanotify_init,
    SYS_finit_module,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fsopen,
    SYS_fspick,
    SYS_init_module,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_io_uring_setup,
    SYS_kexec_file_load,
    SYS_kexec_load,
    SYS_keyctl,
    SYS_lookup_dcookie,
    SYS_mount,
    SYS_mount_setattr,
    SYS_move_mount,
    SYS_move_pages,
    SYS_open_by_handle_at,
    SYS_open_tree,
    SYS_perf_event_open,
    SYS_pivot_root,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_ptrace,
    SYS_quotactl,
    SYS_reboot,
    SYS_request_key,
    SYS_setns,
    SYS_settimeofday,
    SYS_swapoff,
    SYS_swapon,
    SYS_syslog,
    SYS_umount2,
    SYS_unshare,
    SYS_userfaultfd,
    SYS_vhangup,
];
/// The flags of clone(2) that make a namespace.
const NAMESPACES: &[c_int] = &[
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
];
/// The requests of ioctl(2) that put words into the mouth of whoever reads the same terminal:
/// TIOCSTI and TIOCLINUX.
const TERMINAL_REQUESTS: &[u64] = &[0x5412, 0x541c];

/// Refuses the calls to this process and all that it starts.
pub fn restrict() -> anyhow::Result<()> {
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|number| (*number, Vec::new())).collect();
    let namespaces = NAMESPACES.iter().map(|flag| {
        let flag = u64::from(flag.cast_unsigned());
        rule(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)
    });
    refused.insert(SYS_clone, namespaces.collect::<Result<_, _>>()?);
    let requests = TERMINAL_REQUESTS
        .iter()
        .map(|request| rule(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, *request));
    refused.insert(SYS_ioctl, requests.collect::<Result<_, _>>()?);
    apply(refused, EPERM)?;
    // Its flags lie in memory, where no filter sees them. Without it, libraries call clone(2).
    apply(BTreeMap::from([(SYS_clone3, Vec::new())]), ENOSYS)
}

fn rule(
    argument: u8,
    length: SeccompCmpArgLen,
    operator: SeccompCmpOp,
    value: u64,
) -> anyhow::Result<SeccompRule> {
    let condition = SeccompCondition::new(argument, length, operator, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

fn apply(rules: BTreeMap<i64, Vec<SeccompRule>>, error: c_int) -> anyhow::Result<()> {
    let refuse = SeccompAction::Errno(error.cast_unsigned());
    let architecture = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture)?;
    let program: BpfProgram = filter.try_into()?;
    apply_filter(&program)?;
    Ok(())
}
