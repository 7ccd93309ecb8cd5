// A tool for valgrind that writes down each load and store, but only between two requests of the program
// (access_trace.h): lackey --trace-mem does so from the start, which is a hundred times as much.
//
//   turn 1              the program began a trace, with this number
//    L 04222cac,8       a load of so many bytes
//    S 04222cac,8       a store; what loads, too, has a line of each
#include "tests/bench/access_trace.h"

#include <pub_tool_basics.h>
#include <pub_tool_libcassert.h>
#include <pub_tool_libcprint.h>
#include <pub_tool_machine.h>
#include <pub_tool_tooliface.h>
#include <pub_tool_transtab.h>

static Bool is_asked_for = False;  // what runs before needs no instruments
static Bool is_on = False;

static VG_REGPARM(2) void trace_load(Addr address, SizeT size) {
  if (is_on) VG_(printf)(" L %08lx,%lu\n", address, size);
}

static VG_REGPARM(2) void trace_store(Addr address, SizeT size) {
  if (is_on) VG_(printf)(" S %08lx,%lu\n", address, size);
}

// `guard`: null, or whether the access is made.
static void add_trace(IRSB* block, Bool is_store, IRExpr* address, Int size, IRExpr* guard) {
  IRDirty* const call =
      unsafeIRDirty_0_N(2, is_store ? "trace_store" : "trace_load",
                        VG_(fnptr_to_fnentry)(is_store ? (void*)trace_store : (void*)trace_load),
                        mkIRExprVec_2(address, mkIRExpr_HWord((HWord)size)));
  if (guard != NULL) call->guard = guard;
  addStmtToIRSB(block, IRStmt_Dirty(call));
}

static void add_traces(IRSB* block, const IRStmt* statement) {
  const IRTypeEnv* const types = block->tyenv;
  switch (statement->tag) {
    case Ist_WrTmp: {
      const IRExpr* const data = statement->Ist.WrTmp.data;
      if (data->tag == Iex_Load) {
        add_trace(block, False, data->Iex.Load.addr, sizeofIRType(data->Iex.Load.ty), NULL);
      }
      break;
    }
    case Ist_Store: {
      const IRType type = typeOfIRExpr(types, statement->Ist.Store.data);
      add_trace(block, True, statement->Ist.Store.addr, sizeofIRType(type), NULL);
      break;
    }
    case Ist_LoadG: {
      const IRLoadG* const load = statement->Ist.LoadG.details;
      IRType widened, type;
      typeOfIRLoadGOp(load->cvt, &widened, &type);
      add_trace(block, False, load->addr, sizeofIRType(type), load->guard);
      break;
    }
    case Ist_StoreG: {
      const IRStoreG* const store = statement->Ist.StoreG.details;
      const IRType type = typeOfIRExpr(types, store->data);
      add_trace(block, True, store->addr, sizeofIRType(type), store->guard);
      break;
    }
    case Ist_Dirty: {
      const IRDirty* const call = statement->Ist.Dirty.details;
      if (call->mFx != Ifx_None) {
        add_trace(block, call->mFx != Ifx_Read, call->mAddr, call->mSize, call->guard);
      }
      break;
    }
    case Ist_CAS: {
      const IRCAS* const swap = statement->Ist.CAS.details;
      const Int size = sizeofIRType(typeOfIRExpr(types, swap->dataLo));
      add_trace(block, True, swap->addr, swap->dataHi == NULL ? size : 2 * size, NULL);
      break;
    }
    case Ist_LLSC: VG_(tool_panic)("access_trace: LL/SC, which x86 does not have");
    default: break;
  }
}

static IRSB* instrument(VgCallbackClosure* closure, IRSB* block, const VexGuestLayout* layout,
                        const VexGuestExtents* extents, const VexArchInfo* host, IRType guest_word,
                        IRType host_word) {
  if (!is_asked_for) return block;
  IRSB* const traced = deepCopyIRSBExceptStmts(block);
  for (Int i = 0; i < block->stmts_used; ++i) {
    add_traces(traced, block->stmts[i]);
    addStmtToIRSB(traced, block->stmts[i]);
  }
  return traced;
}

static Bool handle_request(ThreadId thread, UWord* words, UWord* result) {
  if (words[0] != ACCESS_TRACE_BEGINS && words[0] != ACCESS_TRACE_ENDS) return False;
  is_on = words[0] == ACCESS_TRACE_BEGINS;
  if (is_on) VG_(printf)("turn %lu\n", words[1]);
  if (is_on && !is_asked_for) {
    is_asked_for = True;
    VG_(discard_translations_safely)(0, ~(SizeT)0, "access_trace");
  }
  *result = 0;
  return True;
}

static void start(void) {}
static void finish(Int code) {}

static void initialise(void) {
  VG_(details_name)("access_trace");
  VG_(details_version)(NULL);
  VG_(details_description)("loads and stores");
  VG_(details_copyright_author)("");
  VG_(details_bug_reports_to)("");
  VG_(basic_tool_funcs)(start, instrument, finish);
  VG_(needs_client_requests)(handle_request);
}

VG_DETERMINE_INTERFACE_VERSION(initialise)
